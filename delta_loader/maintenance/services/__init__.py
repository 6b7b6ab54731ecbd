"""The table services: a table's facts, what is due for it, its runs, and how they are shown."""
