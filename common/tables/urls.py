"""When two URLs mean the same location, and which texts are not URLs of a location for the stage or a table.

Writers open a URL with fsspec and the loader with Hadoop. Each interprets a mistyped URL differently: fsspec takes
``s3:/lake/t`` for a folder of the working directory, and Hadoop drops an empty folder name that fsspec keeps.
`require_url` accepts only URLs that both interpret as the same location.
"""

import difflib
import re

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs"}
"""Schemes with the same locations as another scheme: for another client, or over another transport."""
_OTHER_NAME = {scheme: name for name, scheme in _SAME_SCHEME.items() if scheme != "s3"}
"""Of these schemes, names that earlier releases compared as schemes of their own; they knew the names of S3."""
_CATALOG_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}")


def is_catalog_name(table: str) -> bool:
    """Whether it names a table of a catalog (``schema.table``, ``catalog.schema.table``) and not a location."""
    return _CATALOG_NAME.fullmatch(table) is not None


def comparable(url: str) -> str:
    """A table's URL normalized: without a closing slash, another name of its scheme, and Java's form for a file."""
    scheme, separator, path = url.partition("://")
    url = _SAME_SCHEME.get(scheme, scheme) + separator + path
    if url.startswith("file:/") and not url.startswith("file://"):
        url = url.removeprefix("file:")
    return url.removeprefix("file://").rstrip("/")


def spellings(url: str) -> tuple[str, ...]:
    """All forms of a table's URL that a digest may be of, that of the URL as it is written first.

    Earlier releases normalized fewer names of schemes than `comparable`, and what they recorded stays readable.
    """
    now = comparable(url)
    scheme, separator, path = now.partition("://")
    if scheme not in _OTHER_NAME:
        return (now,)
    other = _OTHER_NAME[scheme] + separator + path
    return (now, other) if url.startswith(f"{scheme}:") else (other, now)


_BUCKETS = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "az", "adl", "wasb", "wasbs", "oss", "oci")
"""Schemes of stores: a bucket, container or account follows."""
_SLASHES = {"file": (1, 3), "hdfs": (2, 3), "webhdfs": (2, 3), "sftp": (2,), "memory": (2, 3)} | dict.fromkeys(
    _BUCKETS, (2,)
)
"""How many slashes may follow the colon of each known scheme."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(:?)(/*)(.*)")


def require_url(url: str) -> str:
    """The URL unchanged. Raises ValueError unless it is an absolute path or the URL of a known store."""
    if not url:
        raise ValueError("is empty; it needs a value")
    if url != url.strip() or not url.isprintable():
        msg = "begins or ends with white space, or holds a character that cannot be printed; write the URL alone"
        raise ValueError(msg)
    if "{" in url or "}" in url:
        raise ValueError(
            "holds { or }, and nothing is filled in there: it would be a folder of that name; write the URL of one "
            "place (${NAME} is an environment variable, and routes have a table for each value)"
        )
    if "::" in url:
        raise ValueError("chains file systems with ::, which the loader cannot open; write the URL of the store itself")
    path = url if url.startswith("/") else _path_of(url)
    if path == "/" or re.search(r"//|/\.\.?(/|$)", path):
        plain = re.sub(r"/(\.?/)+", "/", path)
        is_valid = path != "/" and re.search(r"/\.\.?(/|$)", plain) is None
        hint = f"did you mean {url.removesuffix(path)}{plain}?" if is_valid else "write the whole path"
        msg = f"has an empty folder name in its path, a . or a .., which programs read in different ways; {hint}"
        raise ValueError(msg)
    return url


def _path_of(url: str) -> str:
    """The part after the host or the bucket, with its slash; raises ValueError if it is not a URL."""
    match = _SCHEME.fullmatch(url)
    scheme, colon, slashes, rest = match.groups() if match else ("", "", "", url)
    close_matches = (
        difflib.get_close_matches(scheme.lower(), _SLASHES, n=1, cutoff=0.76) if colon or slashes == "//" else []
    )
    if not (colon or close_matches):
        msg = (
            "is a relative path, and would be a folder of the directory that a program happens to start in; write an "
            f"absolute path such as /data/{url.lstrip('~./')}, or a URL such as s3://lake/orders"
        )
    elif not close_matches:
        known = ", ".join(f"{scheme}://" for scheme in _SLASHES)
        msg = f"has the unknown scheme {scheme!r}; write an absolute path, or a URL that begins with one of {known}"
    elif not rest:
        msg = "names no bucket and no folder; write a URL such as s3://lake/orders"
    elif scheme != close_matches[0] or not colon or len(slashes) not in _SLASHES[scheme]:
        meant = f"{close_matches[0]}:{'/' * _SLASHES[close_matches[0]][-1]}{rest}"
        msg = f"is not a URL, and would be taken for a folder of that name; did you mean {meant}?"
    else:
        has_host = len(slashes) == 2  # noqa: PLR2004 - as in scheme://host/path
        return f"/{rest.partition('/')[2]}".rstrip("/") if has_host else f"/{rest}"
    raise ValueError(msg)
