"""What topologies left on their way to Kafka topics, as the loader sees it."""
