"""Tables that have a name in a catalog."""
