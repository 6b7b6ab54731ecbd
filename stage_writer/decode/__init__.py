"""Messages as columns, and from messages to records: in bulk where that is provably right, otherwise one at a time."""
