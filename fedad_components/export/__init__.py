"""A finished job's result for others: a model card, and a MONAI bundle. Imports no FLARE."""
