"""The bootstrap tool: says where chains begin, and carries out the operator's repairs.

Rule of this package: it never imports a service; it meets them in the marker format (common/stage/markers.py).
"""
