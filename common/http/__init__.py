"""What both services serve over HTTP: health, readiness, version, metrics, and calls that a token allows."""
