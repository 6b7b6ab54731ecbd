"""The table services' pure part: what a table is like, what is due for it, and what is said of it."""
