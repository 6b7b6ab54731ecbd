"""The stage as the loader sees it: what waits, what belongs to a topic that is no more, what is astray."""
