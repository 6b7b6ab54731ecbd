"""Controls the command line of Spark's Java process, which every user of the machine can read.

Rules:

1. It contains only what spark-submit and Java need before Spark runs, and nothing under a key that may be a secret.
   Everything else is passed to Java once it runs.
2. Java options that may contain a secret are in a file that only this user can read. It is deleted once Java runs.
"""

import os
import shlex
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from common.settings.masking import mask

_JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_REPOSITORIES = "spark.jars.repositories"
_NEEDED = (
    "spark.archives", "spark.driver.cores", "spark.driver.defaultExtraClassPath", "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath", "spark.driver.memory", "spark.driver.userClassPathFirst", "spark.files",
    "spark.hadoop.fs.defaultFS", "spark.hadoop.hadoop.security.", "spark.hadoop.yarn.", "spark.jars", "spark.kerberos.",
    "spark.kubernetes.", "spark.log.", "spark.master", "spark.submit.", "spark.yarn.",
)  # fmt: skip


@contextmanager
def launch_options(options: Mapping[str, str], hidden: Collection[str]) -> Iterator[dict[str, str]]:
    """The options for the command line until Java runs; ``hidden`` are texts from the environment and from files."""

    def may_hold_secret(key: str, value: str) -> bool:
        return mask(key, value) != value or any(text in value for text in hidden if text)

    launched = {
        key: value
        for key, value in options.items()
        if key.startswith(_NEEDED) and mask(key, value) == value
        if key != _REPOSITORIES or not may_hold_secret(key, value)
    }
    files: list[Path] = []
    try:
        for key in _JAVA_OPTIONS:
            value = options.get(key)
            if value is not None and may_hold_secret(key, value):
                files.append(_argument_file(value))
                launched[key] = f"@{files[-1]}"
            elif value is not None:
                launched[key] = value
        yield launched
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _argument_file(java_options: str) -> Path:
    """A file for ``java @FILE``, readable by this user only."""
    number, name = tempfile.mkstemp(prefix="java-options-")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        for option in shlex.split(java_options):
            quoted = option.replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'"{quoted}"\n')
    return Path(name)
