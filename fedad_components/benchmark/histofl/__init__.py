"""HistoFL on public data: studies, their runs, results and pages. Imports no FLARE; docs/histofl-results.md."""
