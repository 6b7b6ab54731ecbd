"""Checkpoints of tables, written beside the loads."""
