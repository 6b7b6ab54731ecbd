"""``config init|schema|show``: a first config from a topic's content, and views of a config for editors and people."""
