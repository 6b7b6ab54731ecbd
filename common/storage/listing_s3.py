"""Listing many objects of S3: a thousand come with each answer, so that a million would be a thousand answers in turn.

Rules:

1. The first pages come one after the other, which is all that most listings are. Where there are more, the folders
   right below are asked for, and the rest is listed in ranges between them, side by side: a page more for each range,
   and no request for each folder.
2. Ranges stand on the order of keys. A store that does not list in order (S3's directory buckets) is listed in turn.
3. An object whose name ends with a slash is a folder that somebody's tool made, and nobody's object.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fsspec import AbstractFileSystem

# What S3's client answers has no type that Python could know.
Answer = Any  # type: ignore[explicit-any,unused-ignore]

PAGES_IN_TURN = 4
RANGES = 16


class S3Listing:
    """The objects below one folder."""

    def __init__(self, fs: AbstractFileSystem, folder: str, *, page: int = 1_000) -> None:
        """``folder`` is a bucket, and what stands before a slash in the keys below it; ``page`` keys come at a time."""
        self._fs = fs
        self._bucket, _, prefix = folder.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._page = page

    def items(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Full path and description of each, in no order."""
        last, is_sorted = "", True
        for number, (found, is_last) in enumerate(self._pages("")):
            yield from self._described(found)
            if is_last:
                return
            keys = [str(item["Key"]) for item in found]
            is_sorted = is_sorted and all(before < after for before, after in pairwise([last, *keys]))
            last = max(keys, default=last)
            if number + 1 >= PAGES_IN_TURN and is_sorted:
                break
        borders = [last, *self._borders(last), None]
        with ThreadPoolExecutor(RANGES) as pool:
            for found in pool.map(lambda span: list(self._range(*span)), pairwise(borders)):
                yield from self._described(found)

    def _range(self, after: str | None, until: str | None) -> Iterator[Answer]:
        """What lies above ``after``, up to ``until``."""
        for found, _ in self._pages(after or ""):
            for item in found:
                if until is not None and item["Key"] > until:
                    return
                yield item

    def _borders(self, last: str) -> list[str]:
        """Some of the folders beyond a key, evenly."""
        folders: list[str] = []
        for page in self._answers(StartAfter=last, Delimiter="/"):
            folders += [str(one["Prefix"]) for one in page.get("CommonPrefixes") or []]
        beyond = sorted(folder for folder in folders if folder > last)
        step = max(1, -(-len(beyond) // (RANGES - 1)))
        return beyond[::step]

    def _pages(self, after: str) -> Iterator[tuple[list[Answer], bool]]:
        for page in self._answers(**({"StartAfter": after} if after else {})):
            yield page.get("Contents") or [], not page.get("IsTruncated")

    def _answers(self, **options: str) -> Iterator[Answer]:
        more = options
        while True:
            page: Answer = self._fs.call_s3(
                "list_objects_v2", Bucket=self._bucket, Prefix=self._prefix, MaxKeys=self._page, **more
            )
            yield page
            if not page.get("IsTruncated"):
                return
            more = {**options, "ContinuationToken": page["NextContinuationToken"]}

    def _described(self, found: list[Answer]) -> Iterator[tuple[str, Mapping[str, object]]]:
        for item in found:
            if not str(item["Key"]).endswith("/"):
                described = {"type": "file", "size": item["Size"], "LastModified": item["LastModified"]}
                yield f"{self._bucket}/{item['Key']}", described
