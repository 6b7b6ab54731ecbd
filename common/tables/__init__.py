"""What a Delta table's own log and properties say, read without a JVM; and what the loader writes there."""
