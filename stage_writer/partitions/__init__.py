"""A writer's Kafka partitions: where each starts, how it is started, and what it waits for."""
