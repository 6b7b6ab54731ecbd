"""How far a service is behind Kafka, in records and in time."""
