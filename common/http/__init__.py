"""The HTTP interface of both services: health, readiness, version, metrics, and calls with a token."""
