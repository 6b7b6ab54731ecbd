"""Tasks: instances of a part of a topology, with state, each working on one partition of its topics."""
