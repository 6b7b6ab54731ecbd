"""The stage writer: from Kafka's JSON to Parquet files and done markers. No JVM.

``core`` decides and computes (no I/O, clock, randomness or threads), ``shell`` obeys, ``service`` is the loop from top
to bottom, ``__main__`` wires and is the command line.
"""

import os

# Arrow reads it when it is first imported, and has no other way; stage_writer/shell/memory.py says what it is for.
if "CS_GNU_LIBC_VERSION" in os.confstr_names:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
