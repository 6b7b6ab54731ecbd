"""How a writer tells a loader that waits for markers that there are new ones (common/stage/news.py)."""
