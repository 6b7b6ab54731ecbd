"""Changes of tasks' states in Kafka topics, instead of in the stage."""
