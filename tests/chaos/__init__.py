"""Real processes in a hostile world: three brokers, an S3 server, writers and loaders that are killed, paused and cut.

``python -m tests.chaos`` runs it, ``python -m tests.chaos.two_loaders`` lets two loaders race on one table. What is
done and when comes from a seed (`plan`); what comes of it is judged by Kafka's and the tables' contents
alone (`tests.verifier`), and by what the services and the producer were told (`books`).
"""
