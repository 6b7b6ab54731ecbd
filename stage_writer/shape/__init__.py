"""The steps between a decoded record and the rows of its tables. Pure."""
