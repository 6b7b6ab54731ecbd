"""What must be true before the loader starts, checked by ``check`` and on each start."""
