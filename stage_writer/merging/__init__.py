"""Partitions of several topics read as one (common/merged.py): what a task of a topology sees."""
