"""Pure computation: messages to rows, rows to Parquet in memory, and when to flush."""
