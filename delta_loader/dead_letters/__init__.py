"""``delta-loader dead-letters``: which records were refused, why, and how to load them after a fix."""
