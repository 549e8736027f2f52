"""The benchmark: what each method is worth on a laboratory that no site trained on. Imports no FLARE."""
