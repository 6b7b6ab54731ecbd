"""The clean-up of unreferenced objects."""
