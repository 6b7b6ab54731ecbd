"""Reads messages from Kafka, as a member of the consumer group."""
