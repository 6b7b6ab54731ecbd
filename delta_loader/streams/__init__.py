"""One pass over one stream: its load, the markers near its positions, its settling, and what is told of it."""
