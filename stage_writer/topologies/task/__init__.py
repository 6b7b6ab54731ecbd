"""Tasks: one instance each of a part of a topology, with its state, at work on one partition of its topics."""
