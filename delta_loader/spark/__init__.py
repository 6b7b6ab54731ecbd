"""Everything that needs Spark's JVM: the session, Delta's tables and transactions, and rows that Spark writes."""
