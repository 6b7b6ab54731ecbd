"""Records of topologies for Kafka topics: kept with their flush, and produced once it is sealed."""
