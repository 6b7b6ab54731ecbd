"""What the tool decides, as values: no input or output, no clock, no chance."""
