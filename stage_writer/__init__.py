"""The stage writer: from Kafka's records to Parquet files and done markers. No JVM.

``loop`` is the service. ``fetch`` reads from Kafka, ``decode`` and ``shape`` make rows, ``parquet`` buffers and encodes
them, ``stage`` uploads files and claims the marker. ``wiring`` builds the parts, ``__main__`` is the command line.
line.
"""

import os

# Arrow reads this when it is first imported and has no other way to set it; see stage_writer/process_memory.py.
if "CS_GNU_LIBC_VERSION" in os.confstr_names:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
