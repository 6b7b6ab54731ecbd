"""The bootstrap tool: sets where chains start, and carries out the operator's repairs.

Rule of this package: it never imports a service; it shares only the marker format with them (common/stage/markers.py).
"""
