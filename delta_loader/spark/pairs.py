"""The pairs of Spark and Delta that the loader runs on, and the jars of each that pyspark does not ship.

Those of the release are in `delta_loader/jars.lock`, those of older pairs in `delta_loader/older_jars.lock`. The
installed delta-spark and pyspark say which it is.
"""

from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Literal

from common.downloads import Jar, read_lock
from common.errors import BuildError

JarGroup = Literal["delta", "s3"]

LOCK = Path(__file__).parent.parent / "jars.lock"
OLDER_LOCK = LOCK.with_name("older_jars.lock")


def installed() -> tuple[str, str]:
    """The versions of delta-spark and pyspark. Raises BuildError.

    A pyspark that came with Spark itself has no package that says so; neither may Delta's Python, which is the
    release's then.
    """
    try:
        from pyspark.version import __version__ as spark  # noqa: PLC0415 - a wheel is built without it
    except ImportError:
        msg = "the loader needs pyspark, which is not installed"
        raise BuildError(msg, "run pip install 'kafka-delta-express[delta-loader]'") from None
    try:
        return metadata.version("delta-spark"), spark
    except metadata.PackageNotFoundError:
        return _delta_of(read_lock(LOCK)["delta"]), spark


def locked_jars(delta: str, spark: str) -> Mapping[JarGroup, tuple[Jar, ...]]:
    """The jars for these versions of delta-spark and pyspark. Raises BuildError for a pair that is not supported."""
    pairs = _pairs()
    line = f"{'.'.join(spark.split('.')[:2])}."
    if delta not in pairs or f"{_spark_of(pairs[delta])}." != line:
        known = ", ".join(f"delta-spark {version} with pyspark {_spark_of(jars)}" for version, jars in pairs.items())
        msg = f"delta-spark {delta} with pyspark {spark} is installed, but the loader needs {known}"
        release, jars = next(iter(pairs.items()))
        raise BuildError(msg, f"run pip install delta-spark=={release} 'pyspark=={_spark_of(jars)}.*'")
    return pairs[delta]


def is_release(delta: str) -> bool:
    """Whether this is the Delta that releases are built with."""
    return delta == _delta_of(read_lock(LOCK)["delta"])


def _pairs() -> dict[str, Mapping[JarGroup, tuple[Jar, ...]]]:
    pinned, older = read_lock(LOCK), read_lock(OLDER_LOCK)
    pairs: dict[str, Mapping[JarGroup, tuple[Jar, ...]]] = {
        _delta_of(pinned["delta"]): {"delta": pinned["delta"], "s3": pinned["s3"]}
    }
    for name in (name.removeprefix("delta-") for name in older if name.startswith("delta-")):
        pairs[name] = {"delta": older[f"delta-{name}"], "s3": older[f"s3-{name}"]}
    return pairs


def _delta_of(jars: Iterable[Jar]) -> str:
    return _delta_spark(jars).version


def _spark_of(jars: Mapping[JarGroup, tuple[Jar, ...]]) -> str:
    """The line of Spark's releases, such as ``4.2``."""
    return _delta_spark(jars["delta"]).artifact.split("_")[1]


def _delta_spark(jars: Iterable[Jar]) -> Jar:
    return next(jar for jar in jars if jar.artifact.startswith("delta-spark_"))
