"""Which Java servers and sessions are started with, and how it runs those that live for seconds."""

import os
from pathlib import Path

# What the second compiler makes of a process that lives for seconds does not pay in that time, nor does a small heap.
# Without that compiler, Java keeps little room for code, and would look through it for what it can drop.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:InitialRAMPercentage=100 -XX:NewRatio=1 -XX:MetaspaceSize=256m"
    " -XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing"
)


def java() -> str:
    """The program that Spark would take."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"
