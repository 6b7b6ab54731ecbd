"""How a writer notifies a waiting loader of new markers (common/stage/notifications.py)."""
