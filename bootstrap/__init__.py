"""The bootstrap tool: sets where chains start, and carries out the operator's repairs.

Rule of this package: it never imports a service. What they share is in ``common``.
"""
