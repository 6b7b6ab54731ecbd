"""``stage-writer replay``: rows made anew from Kafka, or from dead letters."""
