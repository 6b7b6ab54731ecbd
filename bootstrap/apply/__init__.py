"""The tool's I/O: Kafka, the table's log, the stage."""
