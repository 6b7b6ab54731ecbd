"""When two URLs mean the same table, and what is no URL of one."""

from __future__ import annotations

import re

_CATALOG_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}")


def is_catalog_name(table: str) -> bool:
    """Whether it names a table of a catalog (``schema.table``, ``catalog.schema.table``) and no location."""
    return _CATALOG_NAME.fullmatch(table) is not None


def comparable(url: str) -> str:
    """A table's URL without what makes no difference: a closing slash, Spark's name for S3, Java's for a file."""
    for alias in ("s3a://", "s3n://"):
        if url.startswith(alias):
            url = "s3://" + url.removeprefix(alias)
    if url.startswith("file:/") and not url.startswith("file://"):
        url = url.removeprefix("file:")
    return url.removeprefix("file://").rstrip("/")
