"""Listings of any size, and abandoned uploads.

Rules:

1. `scan` reads page by page, or folder by folder, and never holds a listing in memory as a whole: a table may have a
   million files.
2. A response of S3 has a thousand objects, so a million would take a thousand sequential requests. The first pages are
   requested one after the other, which completes most listings. Where there are more, the immediate subfolders are
   listed, and the rest is listed in ranges between them, concurrently: one extra page for each range, rather than one
   request for each folder.
3. Ranges rely on the order of keys. A store that does not list in order (S3's directory buckets) is listed
   sequentially.
4. An object whose name ends with a slash is a folder placeholder made by some tool, and not data.
5. A store without multipart uploads has none.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from fsspec import AbstractFileSystem

# The results of fsspec's back ends and their SDKs have no static types.
Answer = Any  # type: ignore[explicit-any,unused-ignore]
Described = Iterator[tuple[str, Mapping[str, object]]]
"""Files: the file system's full path, and the description of each."""

PAGES_IN_TURN = 4
RANGES = 16
_MORE_KEYS = {"ContinuationToken": "NextContinuationToken"}
_MORE_UPLOADS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was started and neither completed nor aborted."""

    path: str
    upload_id: str
    started_ms: int


def scan(fs: AbstractFileSystem, folder: str) -> Described:
    """Every file below a folder (rule 1)."""
    if is_s3(fs):
        yield from S3Listing(fs, folder).in_turn()
    elif "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
        yield from _scan_local(folder)
    else:
        yield from scan_folders(fs, folder)


def is_s3(fs: AbstractFileSystem) -> bool:
    return hasattr(fs, "call_s3")


def _scan_local(folder: str) -> Described:
    folders = [folder]
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except FileNotFoundError:
            continue
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue
                    yield entry.path, {"size": status.st_size, "mtime": status.st_mtime}


def scan_folders(fs: AbstractFileSystem, folder: str) -> Described:
    """Like `scan`, a folder at a time. Raises the error of one that cannot be read."""
    folders = [folder]
    while folders:
        try:
            entries: list[dict[str, Answer]] = fs.ls(folders.pop(), detail=True)
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry["type"] == "directory":
                folders.append(entry["name"])
            else:
                yield str(entry["name"]), entry


class S3Listing:
    def __init__(self, fs: AbstractFileSystem, folder: str, *, page: int = 1_000) -> None:
        """``folder`` is a bucket and a key prefix up to a slash; ``page`` is the number of keys per request."""
        self._fs = fs
        self._bucket, _, prefix = folder.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._page = page

    def in_turn(self) -> Described:
        """A page after the other."""
        for page in self._pages():
            yield from self._described(page.get("Contents") or [])

    def items(self) -> Described:
        """In no order (rules 2 and 3)."""
        last, is_sorted = "", True
        for number, page in enumerate(self._pages()):
            contents = page.get("Contents") or []
            yield from self._described(contents)
            if not page.get("IsTruncated"):
                return
            keys = [str(item["Key"]) for item in contents]
            is_sorted = is_sorted and all(before < after for before, after in pairwise([last, *keys]))
            last = max(keys, default=last)
            if number + 1 >= PAGES_IN_TURN and is_sorted:
                break
        borders = [last, *self._borders(last), None]
        with ThreadPoolExecutor(RANGES) as pool:
            for items in pool.map(lambda span: list(self._range(*span)), pairwise(borders)):
                yield from self._described(items)

    def uploads(self) -> Iterator[tuple[str, str, datetime]]:
        """Full path, id and start time of each upload."""
        for page in self._answers("list_multipart_uploads", _MORE_UPLOADS):
            for upload in page.get("Uploads") or []:
                yield f"{self._bucket}/{upload['Key']}", str(upload["UploadId"]), upload["Initiated"]

    def _range(self, after: str | None, until: str | None) -> Iterator[Answer]:
        """The keys above ``after``, up to ``until``."""
        for page in self._pages(StartAfter=after or ""):
            for item in page.get("Contents") or []:
                if until is not None and item["Key"] > until:
                    return
                yield item

    def _borders(self, last: str) -> list[str]:
        """Some of the folders beyond a key, evenly spaced."""
        folders: list[str] = []
        for page in self._pages(StartAfter=last, Delimiter="/"):
            folders += [str(prefix["Prefix"]) for prefix in page.get("CommonPrefixes") or []]
        beyond = sorted(folder for folder in folders if folder > last)
        step = max(1, -(-len(beyond) // (RANGES - 1)))
        return beyond[::step]

    def _pages(self, **options: str) -> Iterator[Answer]:
        given = {name: value for name, value in options.items() if value}
        return self._answers("list_objects_v2", _MORE_KEYS, MaxKeys=self._page, **given)

    def _answers(self, method: str, more: Mapping[str, str], **options: str | int) -> Iterator[Answer]:
        """``more`` are the parameters of the next request, and where a response has them."""
        next_page: dict[str, str] = {}
        while True:
            page: Answer = self._fs.call_s3(method, Bucket=self._bucket, Prefix=self._prefix, **options, **next_page)
            yield page
            if not page.get("IsTruncated"):
                return
            next_page = {parameter: page[name] for parameter, name in more.items()}

    def _described(self, items: list[Answer]) -> Described:
        for item in items:
            if not str(item["Key"]).endswith("/"):
                described = {"type": "file", "size": item["Size"], "LastModified": item["LastModified"]}
                yield f"{self._bucket}/{item['Key']}", described


def abort(fs: AbstractFileSystem, full: str, upload_id: str) -> None:
    """Abort an upload; its parts are deleted. A missing one is ignored."""
    bucket, _, key = full.partition("/")
    try:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)
    except FileNotFoundError:
        return
