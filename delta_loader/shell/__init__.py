"""What carries the core's decisions out: Spark, Delta, object stores."""
