"""Regenerates the jar locks: ``python -m devservices.lock_jars`` (needs Maven; run it after a version change).

Maven resolves the runtime dependencies of the roots below. Artifacts that pyspark ships are left out, in any version:
two versions of a library on one class path fail late.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from common.downloads import Jar
from delta_loader.spark.pairs import LOCK as LOADER_LOCK
from delta_loader.spark.pairs import OLDER_LOCK
from devservices.kafka import LOCK as KAFKA_LOCK

STREAMS_LOCK = Path(__file__).parent / "kafka_streams.lock"
BENCHMARK_LOCK = Path(__file__).parent.parent / "benchmarks" / "jars.lock"

_AWS = "software.amazon.awssdk"
_LINE = re.compile(r"\s+(?P<group>[^:]+):(?P<artifact>[^:]+):jar:(?P<version>[^:]+):(?:compile|runtime)")


@dataclass(frozen=True, slots=True)
class Group:
    """A group of a lock: its roots as ``group:artifact:version``, and its exclusions as ``group:artifact``."""

    name: str
    roots: tuple[str, ...]
    without: tuple[str, ...] = ()
    on_pyspark_class_path: bool = True


def _delta(spark: str, version: str, name: str = "delta") -> Group:
    """Delta for one Spark release line."""
    return Group(name, (f"io.delta:delta-spark_{spark}_2.13:{version}",))


def _s3(hadoop: str, aws: str, name: str = "s3") -> Group:
    """S3 for pyspark's Hadoop, with the AWS SDK that this Hadoop was built with."""
    parts = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
    return Group(
        name,
        (f"org.apache.hadoop:hadoop-aws:{hadoop}", *(f"{_AWS}:{part}:{aws}" for part in parts)),
        without=(f"{_AWS}:bundle",),  # all AWS services in one jar of 600 MB
    )


PINNED = (_delta("4.2", "4.4.0"), _s3("3.5.0", "2.35.4"))
OLDER = tuple(
    group
    for delta in ("4.3.1", "4.2.0")
    for group in (_delta("4.1", delta, f"delta-{delta}"), _s3("3.4.2", "2.29.52", f"s3-{delta}"))
)
KAFKA = Group(
    "kafka",
    ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.kafka:kafka-tools:4.3.1", "org.slf4j:slf4j-simple:1.7.36"),
    # A broker needs no Connect worker; Jetty and Jersey go with it.
    without=(
        "org.apache.kafka:connect-runtime",
        "org.apache.kafka:connect-transforms",
        "com.fasterxml.jackson.jakarta.rs:*",
    ),
    on_pyspark_class_path=False,
)
# The same version as the broker's. Topologies are compared with it.
STREAMS = Group(
    "kafka-streams",
    (
        "org.apache.kafka:kafka-streams:4.3.1",
        "org.apache.kafka:kafka-streams-test-utils:4.3.1",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    on_pyspark_class_path=False,
)
_SPARK = "org.apache.spark"
_TOKENS = f"{_SPARK}:spark-token-provider-kafka-0-10_2.13"
STREAMING = Group(
    "spark-kafka",
    (
        f"{_SPARK}:spark-sql-kafka-0-10_2.13:4.2.0",
        f"{_TOKENS}:4.1.0-preview1",  # not published with 4.2.0
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    without=(_TOKENS,),
)
AVRO = Group("spark-avro", (f"{_SPARK}:spark-avro_2.13:4.1.1",))  # not published with 4.2.0


def main() -> None:
    _write(LOADER_LOCK, PINNED, "What the loader's Spark needs next to pyspark 4.2.0: Delta, and S3 through s3a.")
    _write(KAFKA_LOCK, (KAFKA,), "Apache Kafka for development and tests.")
    _write(STREAMS_LOCK, (STREAMS,), "Kafka Streams and its test driver, which topologies are compared with.")
    _write(OLDER_LOCK, OLDER, "The same for the older pairs of Spark and Delta that the loader runs on.")
    _write(BENCHMARK_LOCK, (STREAMING, AVRO), "Spark's Kafka source and its Avro, for the benchmark.")


def _write(path: Path, groups: tuple[Group, ...], title: str) -> None:
    lines = [f"# {title}", "# Made by `python -m devservices.lock_jars`; do not edit."]
    for group in groups:
        lines += ["", f"[{group.name}]", *(jar.line for jar in _resolve(group))]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    sys.stderr.write(f"{path}: written\n")


def _resolve(group: Group) -> list[Jar]:
    with tempfile.TemporaryDirectory() as folder:
        repository, project = Path(folder) / "repository", Path(folder) / "pom.xml"
        project.write_text(_project(group), "utf-8")
        listing = Path(folder) / "list"
        maven = ["mvn", "-q", "-B", "-f", str(project), f"-Dmaven.repo.local={repository}"]
        arguments = ["dependency:list", "-DincludeScope=runtime", f"-DoutputFile={listing}"]
        subprocess.run([*maven, *arguments], check=True)
        found = [match for line in listing.read_text("utf-8").splitlines() if (match := _LINE.match(line))]
        jars = [Jar(match["group"], match["artifact"], match["version"], "") for match in found]
        kept = [jar for jar in jars if not (group.on_pyspark_class_path and jar.artifact in _in_pyspark())]
        return sorted(
            (Jar(jar.group, jar.artifact, jar.version, _sha256(repository / jar.path)) for jar in kept),
            key=lambda jar: (jar.group, jar.artifact),
        )


def _project(group: Group) -> str:
    excluded = "".join(
        f"<exclusion><groupId>{owner}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for owner, artifact in (name.split(":") for name in group.without)
    )
    dependencies = "".join(
        f"<dependency><groupId>{owner}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"<exclusions>{excluded}</exclusions></dependency>"
        for owner, artifact, version in (root.split(":") for root in group.roots)
    )
    head = f"<modelVersion>4.0.0</modelVersion><groupId>lock</groupId><artifactId>{group.name}</artifactId>"
    return f"<project>{head}<version>1</version><dependencies>{dependencies}</dependencies></project>"


def _in_pyspark() -> set[str]:
    """The artifacts that pyspark ships, including those that it ships under other names."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        msg = "pyspark is not installed: run `make setup`"
        raise SystemExit(msg)
    names = {re.sub(r"-\d[^/]*\.jar$", "", jar.name) for jar in (Path(pyspark.origin).parent / "jars").glob("*.jar")}
    # jcl-over-slf4j replaces commons-logging, and RoaringBitmap includes its shims.
    return names | {"commons-logging", "shims"}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
