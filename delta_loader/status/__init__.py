"""How far each Kafka partition is: for ``delta-loader status`` and the pages."""
