"""Load modes: how staged rows get into a table, which mode a table needs, and whether the rows are compatible."""
