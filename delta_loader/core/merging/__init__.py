"""What becomes of a table with one row for each key when change events come: as SQL text, without Spark."""
