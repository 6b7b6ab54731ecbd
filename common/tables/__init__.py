"""Reads a Delta table's own log and properties without a JVM, and defines what the loader writes there."""
