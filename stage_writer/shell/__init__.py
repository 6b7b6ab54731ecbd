"""What touches the world: Kafka and the store."""
