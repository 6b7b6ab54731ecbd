"""``stage-writer replay``: converts rows again from Kafka, or from dead letters."""
