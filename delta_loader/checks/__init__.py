"""Checks before the loader starts, and the proof afterwards that each record is in the tables once."""
