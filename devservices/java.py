"""The Java program for servers and sessions, and JVM options for processes that live for seconds."""

import os
from pathlib import Path

# In a process that lives for seconds, the second compiler (C2) costs more than it saves, and so does a small heap.
# Without C2, Java reserves little space for compiled code, and would scan it for code to discard.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:InitialRAMPercentage=100 -XX:NewRatio=1 -XX:MetaspaceSize=256m"
    " -XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing"
)


def java(program: str = "java") -> str:
    """A program of the JDK whose Java Spark would use."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / program) if home else program
