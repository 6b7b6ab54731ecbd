"""The status page of both services."""
