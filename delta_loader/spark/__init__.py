"""Checkpoints of tables, written in the background."""
