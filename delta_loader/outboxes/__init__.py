"""Topologies' undelivered records to Kafka topics, from the loader's side."""
