"""The model of the chain, and ``python -m model``, which has a model checker look at all that can happen in it."""
