"""The tool's decisions, as values: no input or output, no clock, no randomness."""
