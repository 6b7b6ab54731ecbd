"""What messages are wrapped in: frames of a schema registry, and change events."""
