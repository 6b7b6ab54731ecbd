"""The clean-up of what nothing refers to."""
