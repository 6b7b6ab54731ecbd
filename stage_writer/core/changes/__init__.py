"""Change events on their way to a table that has one row for each key: what a stream with `merge` does to its rows."""
