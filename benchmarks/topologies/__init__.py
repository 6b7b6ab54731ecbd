"""Topology benchmarks: the state stores here, and whole topologies compared with Kafka Streams."""
