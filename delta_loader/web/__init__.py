"""What the loader serves over HTTP."""
