"""Partitions of several topics read as one (common/stage/merged.py): the input of a topology's task."""
