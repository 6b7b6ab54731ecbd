"""The object store: reading, exclusive creation, and listings of any size."""
