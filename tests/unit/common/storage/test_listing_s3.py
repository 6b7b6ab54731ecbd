"""A long S3 listing in ranges, of a bucket in memory."""

from typing import cast

import pytest
from fsspec import AbstractFileSystem

from common.storage.listing import S3Listing


class Bucket:
    """Lists its keys as S3 does, and without a page limit the folders beyond a key."""

    def __init__(self, keys: list[str]) -> None:
        self._keys = sorted(keys)

    def call_s3(self, _method: str, **options: object) -> object:
        after = str(options.get("ContinuationToken", options.get("StartAfter", "")))
        prefix, most = str(options["Prefix"]), cast("int", options["MaxKeys"])
        keys = [key for key in self._keys if key.startswith(prefix) and key > after]
        if "Delimiter" in options:
            folders = {f"{prefix}{key.removeprefix(prefix).partition('/')[0]}/" for key in keys}
            return {"CommonPrefixes": [{"Prefix": folder} for folder in sorted(folders)]}
        page = {"Contents": [{"Key": key, "Size": 1, "LastModified": None} for key in keys[:most]]}
        return page | ({"IsTruncated": True, "NextContinuationToken": keys[most - 1]} if len(keys) > most else {})


@pytest.mark.parametrize("page", [2, 3, 7, 1_000])
def test_listing_in_ranges_has_each_object_once(page: int) -> None:
    """Its ranges begin within a folder or at its end."""
    keys = [f"stage/done/{partition:02d}/{start}.done" for partition in range(20) for start in range(5)]
    listing = S3Listing(cast("AbstractFileSystem", Bucket(keys)), "bucket/stage/done", page=page)
    assert sorted(full for full, _ in listing.items()) == [f"bucket/{key}" for key in keys]
