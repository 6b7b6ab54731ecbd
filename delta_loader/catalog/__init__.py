"""Tables that a catalog knows by a name."""
