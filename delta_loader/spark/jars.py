"""The jars that the loader's Spark session needs and pyspark does not ship, exactly as locked.

They are passed to Spark as plain files (``spark.jars``): no resolver runs when a session starts, the network is not
used once they are in the cache, and every session of one release runs on the same bytes.
"""

from collections.abc import Iterable
from pathlib import Path

from common import downloads
from delta_loader.spark.pairs import JarGroup, installed, locked_jars


def ensure_jars(groups: Iterable[JarGroup]) -> list[Path]:
    """The jars of these groups, downloaded where they are missing; raises DownloadError and BuildError."""
    lock = locked_jars(*installed())
    return list(downloads.ensure_jars([jar for group in groups for jar in lock[group]]))


if __name__ == "__main__":  # python -m delta_loader.spark.jars: fill the cache, as `make setup` and an image do
    from delta_loader.spark.bridge_jar import ensure_bridge_jar
    from delta_loader.spark.native_codecs import codec_options

    codec_options()
    ensure_jars(["delta", "s3"])
    ensure_bridge_jar()
