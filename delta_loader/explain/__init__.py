"""``delta-loader explain`` without its pure part: reads logs, data files, the stage and Kafka. Needs no JVM."""
