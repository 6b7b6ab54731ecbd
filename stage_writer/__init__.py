"""The stage writer: from Kafka's JSON to Parquet files and done markers. No JVM.

``core`` decides and computes (no I/O, clock, randomness or threads), ``shell`` obeys, ``service`` is the loop from top
to bottom, ``__main__`` wires and is the command line.
"""
