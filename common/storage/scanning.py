"""Listings of any size, and abandoned uploads, for clean-ups.

Rules:

1. A listing is read page by page, or folder by folder, and never held in memory as a whole: a table may have a million
   files.
2. A store without multipart uploads has none.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fsspec import AbstractFileSystem

# The results of fsspec's back ends and their SDKs have no static types.
Answer = Any  # type: ignore[explicit-any,unused-ignore]


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was started and neither completed nor aborted."""

    path: str
    upload_id: str
    started_ms: int


def scan(fs: AbstractFileSystem, folder: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every file below a folder, as the file system's full path and its description."""
    if _is_s3(fs):
        yield from _scan_s3(fs, folder)
    elif _is_local(fs):
        yield from _scan_local(folder)
    else:
        yield from scan_folders(fs, folder)


def uploads(fs: AbstractFileSystem, folder: str) -> Iterator[tuple[str, str, datetime]]:
    """Full path, id and start time of each upload below a folder."""
    if not _is_s3(fs):
        return
    bucket, _, prefix = folder.partition("/")
    more: dict[str, str] = {}
    while True:
        page: Answer = fs.call_s3(
            "list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "", **more
        )
        for upload in page.get("Uploads") or []:
            yield f"{bucket}/{upload['Key']}", str(upload["UploadId"]), upload["Initiated"]
        if not page.get("IsTruncated"):
            return
        more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def abort(fs: AbstractFileSystem, full: str, upload_id: str) -> None:
    """Abort an upload; its parts are deleted. A missing one is ignored."""
    bucket, _, key = full.partition("/")
    try:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)
    except FileNotFoundError:
        return


def _is_s3(fs: AbstractFileSystem) -> bool:
    return hasattr(fs, "call_s3")


def _is_local(fs: AbstractFileSystem) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def _scan_s3(fs: AbstractFileSystem, folder: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    bucket, _, prefix = folder.partition("/")
    more: dict[str, str] = {}
    while True:
        page: Answer = fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "", **more)
        for item in page.get("Contents") or []:
            yield f"{bucket}/{item['Key']}", {"size": item["Size"], "LastModified": item["LastModified"]}
        if not page.get("IsTruncated"):
            return
        more = {"ContinuationToken": page["NextContinuationToken"]}


def _scan_local(folder: str) -> Iterator[tuple[str, Mapping[str, object]]]:
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


def scan_folders(fs: AbstractFileSystem, folder: str) -> Iterator[tuple[str, Mapping[str, object]]]:
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
