"""A long S3 listing in ranges, of a bucket in memory."""

from typing import cast

import pytest
from fsspec import AbstractFileSystem

from common.storage.listing import S3Listing, abort


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
    others = ["stage/done/", "stage/done/03/", "stage/done2/0.done"]  # placeholders, and another folder
    listing = S3Listing(cast("AbstractFileSystem", Bucket([*keys, *others])), "bucket/stage/done", page=page)
    assert sorted(full for full, _ in listing.items()) == [f"bucket/{key}" for key in keys]


def test_bucket_without_an_order_is_listed_page_by_page() -> None:
    keys = [f"done/{number * 7 % 100:02d}" for number in range(100)]

    class Unordered:
        def call_s3(self, _method: str, **options: object) -> object:
            assert not {"StartAfter", "Delimiter"} & options.keys()
            start = int(str(options.get("ContinuationToken", 0)))
            page = {"Contents": [{"Key": key, "Size": 1, "LastModified": None} for key in keys[start : start + 9]]}
            return page | ({"IsTruncated": True, "NextContinuationToken": str(start + 9)} if start + 9 < 100 else {})

    listing = S3Listing(cast("AbstractFileSystem", Unordered()), "bucket/done", page=9)
    assert sorted(full for full, _ in listing.items()) == sorted(f"bucket/{key}" for key in keys)


def test_uploads_of_one_key_continue_on_the_next_page() -> None:
    class Uploading:
        def call_s3(self, method: str, **options: object) -> object:
            if method == "abort_multipart_upload":
                raise FileNotFoundError
            number = int(str(options["UploadIdMarker"])) + 1 if options.get("KeyMarker") == "a" else 0
            more = {"IsTruncated": number < 2, "NextKeyMarker": "a", "NextUploadIdMarker": number}
            return more | {"Uploads": [{"Key": "a", "UploadId": number, "Initiated": None}]}

    fs = cast("AbstractFileSystem", Uploading())
    assert [upload_id for _, upload_id, _ in S3Listing(fs, "bucket").uploads()] == ["0", "1", "2"]
    abort(fs, "bucket/a", "0")  # it has been completed since
