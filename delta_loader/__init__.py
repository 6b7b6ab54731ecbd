"""The delta loader: from done markers to Delta commits.

``core`` decides (pure functions over values), ``shell`` obeys (Spark, Delta, object stores), ``service`` is the loop,
and ``__main__`` wires the real parts together.
"""
