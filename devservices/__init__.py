"""Real Kafka and S3 servers, and the tools around them, for development, the demo, the tests and the benchmarks.

Rule of this package: it belongs to the repository and not to the product; no installed package imports it. It stops
every process that it starts, by process id, and the operating system stops them when the parent dies.
"""
