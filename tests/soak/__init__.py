"""Programs that run for minutes, and the short forms of them that are tests."""
