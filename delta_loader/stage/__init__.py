"""The stage as the loader sees it: waiting markers, markers of deleted topics, and strays."""
