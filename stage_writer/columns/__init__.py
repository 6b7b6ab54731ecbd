"""Columns that a stream does not declare: found when the writer starts, or with its first records, and followed."""
