"""The pure part of the table services: a table's facts, what is due for it, and how it is shown."""
