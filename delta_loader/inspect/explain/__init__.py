"""``delta-loader explain``: what a table's version loaded, and where a Kafka offset is."""
