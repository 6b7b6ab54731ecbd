"""What the programs' Kafka clients have in common."""
