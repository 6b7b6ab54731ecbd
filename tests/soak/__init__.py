"""Programs that run for minutes, and their short forms, which are tests."""
