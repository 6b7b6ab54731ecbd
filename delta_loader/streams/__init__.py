"""One pass over one stream: load, marker window, settling, and report."""
