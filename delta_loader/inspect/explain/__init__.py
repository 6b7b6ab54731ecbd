"""The content of ``delta-loader explain``, as values: of a table's version, and of a Kafka offset."""
