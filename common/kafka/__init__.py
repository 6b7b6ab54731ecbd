"""The shared parts of the programs' Kafka clients."""
