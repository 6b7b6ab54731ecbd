"""One broker for all processes of a run of tests: each would start and keep its own, and their topics have other names.

Rules:

1. The first process that asks starts it, while others that ask wait. It ends it after the others have ended, or died:
   each has a lock on the folder as long as it uses the broker.
2. A process that asks after that starts another one.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from devservices.kafka import TOLERATES_PAUSES, Broker, KafkaCluster, KafkaOptions, running_kafka

# An idle broker writes records that say nothing, and sends itself heartbeats, twice a second each.
_PROPERTIES = {**TOLERATES_PAUSES, "metadata.max.idle.interval.ms": "0", "broker.heartbeat.interval.ms": "2000"}


@contextmanager
def shared_kafka(folder: Path) -> Iterator[KafkaCluster]:
    """The broker of the processes with the same ``folder``."""
    folder.mkdir(exist_ok=True)
    port = folder / "port"
    with (folder / "users").open("w") as users, (folder / "start").open("w") as start, ExitStack() as own:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(start, fcntl.LOCK_EX)
        if port.exists():
            cluster = KafkaCluster((Broker(1, int(port.read_text("utf-8")), folder),))
        else:
            cluster = own.enter_context(running_kafka(KafkaOptions(partitions=4, properties=_PROPERTIES)))
            port.write_text(str(cluster.brokers[0].port), "utf-8")
            own.callback(port.unlink)
            own.callback(fcntl.flock, users, fcntl.LOCK_EX)
        fcntl.flock(start, fcntl.LOCK_UN)
        yield cluster
