"""Real parts for development, the demo, the tests and the benchmarks: Apache Kafka and S3 servers.

Rule of this package: it belongs to the repository and not to the product; nothing that is installed imports it. What
it starts it also stops, by process id, and the operating system stops it when the parent dies.
"""
