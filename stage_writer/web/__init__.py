"""What the writer says of itself over HTTP."""
