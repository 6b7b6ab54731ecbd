"""``stage-writer replay``: rows converted again from Kafka, or from dead letters."""
