"""Merges change events into a table through Delta's own MERGE."""
