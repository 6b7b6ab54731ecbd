"""When two URLs mean the same table."""

from __future__ import annotations


def comparable(url: str) -> str:
    """A table's URL without what makes no difference: a closing slash, and Spark's name for S3."""
    for alias in ("s3a://", "s3n://"):
        if url.startswith(alias):
            url = "s3://" + url.removeprefix(alias)
    return url.removeprefix("file://").rstrip("/")
