"""``config init|schema|show``: a first config from what a topic holds, and what editors and people ask of one."""
