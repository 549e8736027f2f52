"""This folder is importable in its tests: what they share stands in `audit_events.py`."""
