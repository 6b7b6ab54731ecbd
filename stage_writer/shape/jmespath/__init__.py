"""Columns filled by JMESPath, as in kafka-delta-ingest."""
