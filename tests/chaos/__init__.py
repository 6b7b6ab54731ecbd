"""Real processes in a hostile world: three brokers, an S3 server, and writers and loaders that are killed, paused and
cut off.

``python -m tests.chaos`` runs it; ``python -m tests.chaos.two_loaders`` lets two loaders race on one table. Faults and
their times come from a seed (`plan`). The result is judged by the contents of Kafka and of the tables alone
(`tests.verifier`), and by what the services and the producer reported (`reported`).
"""
