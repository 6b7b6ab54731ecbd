"""Topologies in the writer: a task for each Kafka partition, whose state advances with its chain."""
