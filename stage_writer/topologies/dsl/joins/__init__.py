"""Joins: of two streams within a window of time, of a stream with a table, and of two tables."""
