"""The compliance log: written at each party, verified by anybody. Imports neither FLARE nor torch."""
