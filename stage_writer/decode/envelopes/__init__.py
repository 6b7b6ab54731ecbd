"""Wrappers of messages: schema registry frames, and change events."""
