"""The delta loader: loads completed markers into Delta tables by commits.

``service`` is the loop, and ``load`` is one pass over one stream. ``plan`` and ``tables`` decide (pure functions over
values), ``spark`` carries the decisions out, ``wiring`` builds the parts, and ``__main__`` is the command line.
"""
