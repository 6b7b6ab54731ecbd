"""Real processes in a hostile world: three brokers, an S3 server, writers and loaders that are killed, paused and cut.

``python -m tests.chaos`` runs it, ``python -m tests.chaos.two_loaders`` lets two loaders race on one table. What is
done and when comes from a seed (`plan`); what comes of it is told by an independent verifier (`books`).
"""
