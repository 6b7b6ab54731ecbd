"""The delta loader: loads completed markers into Delta tables by commits.

``core`` decides (pure functions over values), ``shell`` carries the decisions out (Spark, Delta, object stores),
``service`` is the loop, and ``__main__`` wires the real parts together.
"""
