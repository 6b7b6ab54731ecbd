"""Rows into Parquet files in memory, by partition value, with the statistics that Delta keeps."""
