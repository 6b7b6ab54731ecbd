"""Rows into Parquet files in memory, by partition value, with Delta's statistics."""
