"""``delta-loader dead-letters``: what did not fit, why, and how it gets into the table after a fix."""
