"""Which markers a commit loads, and why a Kafka partition is held. Pure."""
