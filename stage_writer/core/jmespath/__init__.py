"""Columns filled by JMESPath, as kafka-delta-ingest fills them."""
