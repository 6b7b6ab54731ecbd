"""Lists many objects of S3: a response has a thousand, so a million would take a thousand sequential requests.

Rules:

1. The first pages are requested one after the other, which completes most listings. Where there are more, the immediate
   subfolders are listed, and the rest is listed in ranges between them, concurrently: one extra page for each range,
   rather than one request for each folder.
2. Ranges rely on the order of keys. A store that does not list in order (S3's directory buckets) is listed
   sequentially.
3. An object whose name ends with a slash is a folder placeholder made by some tool, and not data.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from fsspec import AbstractFileSystem

# The results of S3's client have no static types.
Answer = Any  # type: ignore[explicit-any,unused-ignore]

PAGES_IN_TURN = 4
RANGES = 16


class S3Listing:
    def __init__(self, fs: AbstractFileSystem, folder: str, *, page: int = 1_000) -> None:
        """``folder`` is a bucket and a key prefix up to a slash; ``page`` is the number of keys per request."""
        self._fs = fs
        self._bucket, _, prefix = folder.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._page = page

    def items(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Full path and description of each, in no order."""
        last, is_sorted = "", True
        for number, (page, is_last) in enumerate(self._pages("")):
            yield from self._described(page)
            if is_last:
                return
            keys = [str(item["Key"]) for item in page]
            is_sorted = is_sorted and all(before < after for before, after in pairwise([last, *keys]))
            last = max(keys, default=last)
            if number + 1 >= PAGES_IN_TURN and is_sorted:
                break
        borders = [last, *self._borders(last), None]
        with ThreadPoolExecutor(RANGES) as pool:
            for items in pool.map(lambda span: list(self._range(*span)), pairwise(borders)):
                yield from self._described(items)

    def _range(self, after: str | None, until: str | None) -> Iterator[Answer]:
        """The keys above ``after``, up to ``until``."""
        for items, _ in self._pages(after or ""):
            for item in items:
                if until is not None and item["Key"] > until:
                    return
                yield item

    def _borders(self, last: str) -> list[str]:
        """Some of the folders beyond a key, evenly spaced."""
        folders: list[str] = []
        for page in self._answers(StartAfter=last, Delimiter="/"):
            folders += [str(prefix["Prefix"]) for prefix in page.get("CommonPrefixes") or []]
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

    def _described(self, items: list[Answer]) -> Iterator[tuple[str, Mapping[str, object]]]:
        for item in items:
            if not str(item["Key"]).endswith("/"):
                described = {"type": "file", "size": item["Size"], "LastModified": item["LastModified"]}
                yield f"{self._bucket}/{item['Key']}", described
