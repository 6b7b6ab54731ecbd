"""Which Java servers and sessions are started with."""

import os
from pathlib import Path


def java() -> str:
    """The program that Spark would take."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"
