"""How change events are merged into a table with one row per key: as SQL text, without Spark."""
