"""Kafka partitions of a writer: where each begins, how it is taken up, and what it waits for."""
