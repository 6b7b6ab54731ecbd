"""What is looked at before the loader begins, and what proves afterwards that each record is there once."""
