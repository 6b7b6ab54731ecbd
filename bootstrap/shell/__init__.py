"""What the tool asks and changes: Kafka, the table's log, the stage."""
