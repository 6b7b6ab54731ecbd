"""Everything with side effects: Kafka and the store."""
