"""A service's lag behind Kafka, in records and in time."""
