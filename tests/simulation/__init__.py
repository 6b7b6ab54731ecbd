"""The deterministic simulation: the real services over a simulated Kafka, group, clock, store and Delta log.

One seed is one history. ``python -m tests.simulation --seeds 10000`` runs many, ``--seed N`` replays one and prints its
trace.
"""
