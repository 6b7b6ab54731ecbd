"""Messages into rows: in bulk where that is provably right, otherwise one at a time."""
