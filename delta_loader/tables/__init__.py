"""The model of a table and of a commit: load modes, compatibility, and how schemas change. Pure."""
