"""A stream's tables in a pass: read, created, changed, caught up, and repaired."""
