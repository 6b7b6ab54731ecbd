"""Change events for a table with one row for each key: what `merge` does to a stream's rows."""
