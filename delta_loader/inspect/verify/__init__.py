"""``delta-loader verify``: the tables against their history, the stage and Kafka."""
