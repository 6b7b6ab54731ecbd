"""What ``delta-loader explain`` says, as values: of a table's version, and of a Kafka offset."""
