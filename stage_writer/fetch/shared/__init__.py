"""A Kafka partition that the chains of several streams read: fetched once."""
