"""Carries out the core's decisions: Spark, Delta, object stores."""
