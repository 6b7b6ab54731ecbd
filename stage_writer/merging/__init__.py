"""Partitions of several topics read as one (common/stage/merged.py): what a task of a topology sees."""
