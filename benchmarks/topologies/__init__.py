"""Measurements of topologies: their stores here, the whole beside Kafka Streams in the modules named so."""
