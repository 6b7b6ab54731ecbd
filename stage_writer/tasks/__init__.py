"""Topologies in the writer: a task for each Kafka partition, whose state moves on with its chain."""
