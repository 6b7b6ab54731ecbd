"""Messages into rows: in bulk where that can be proved right, one at a time where not."""
