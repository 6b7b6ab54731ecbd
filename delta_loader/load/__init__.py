"""Decisions of the loader: values in, values out. No I/O, clock, randomness or threads."""
