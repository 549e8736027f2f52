"""Differential privacy: units, mechanism, accountants, ledger and audit. Imports no FLARE."""
