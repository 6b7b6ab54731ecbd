"""Reads a Delta table's own log and properties without a JVM, and defines the loader's entries in it."""
