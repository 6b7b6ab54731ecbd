"""A stream's tables in a pass: looked at, made, changed, brought up, put right."""
