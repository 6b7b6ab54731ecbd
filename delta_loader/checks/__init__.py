"""Conditions for the loader's start, checked by ``check`` and on each start."""
