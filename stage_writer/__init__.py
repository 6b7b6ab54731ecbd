"""The stage writer: from Kafka's JSON to Parquet files and done markers. No JVM.

``core`` decides and computes (no I/O, clock, randomness or threads), ``shell`` carries it out, ``service`` is the loop
from top to bottom, ``__main__`` wires and is the command line.
"""

import os

# Arrow reads this when it is first imported and has no other way to set it; see stage_writer/process_memory.py.
if "CS_GNU_LIBC_VERSION" in os.confstr_names:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
