"""``delta-loader explain`` around its pure part: what logs, data files, the stage and Kafka say. Needs no JVM."""
