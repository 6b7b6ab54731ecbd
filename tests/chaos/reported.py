"""What services and producer reported, compared with Kafka and the Delta log. The verdict on the records is separate
(tests/chaos/history.py).

Rules:

1. Kafka is compared with the producer's ledger first: committed records are there once, aborted ones are not, and each
   record is the one of its number. So the verifier can rely on Kafka's content.
2. Each commit that a loader logged (even if it was killed a moment later) is in the Delta log under its version and its
   id, and no id is there twice.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING

from common.errors import KafkaDeltaExpressError
from common.storage.store import FsspecStore
from common.tables.delta_log import read_table_state
from tests.chaos.producer import ABORTED, KEPT
from tests.chaos.records import number_of
from tests.chaos.services import events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from devservices.s3 import S3Server
    from tests.chaos.records import Record
    from tests.chaos.services import Service
    from tests.verifier import Sent

_COMMIT = re.compile(r"_delta_log/(\d{20})\.json")


def ledger_faults(ledger: Path, sent: Sequence[Sent], of: Callable[[int], Record]) -> list[str]:
    """Differences between Kafka's content and the producer's ledger (rule 1); ``of`` gives the record of a number."""
    lines = [line.split() for line in ledger.read_text("ascii").splitlines()]
    if lines[-1] != ["end"]:
        return ["the producer did not come to its end"]
    fates = {number: fate for first, end, fate in lines[:-1] for number in range(int(first), int(end))}
    numbers = Counter(number_of(record) for record in sent)
    faults = [
        f"record {number} was acknowledged, and Kafka has it not" for number in fates if _lost(number, fates, numbers)
    ]
    faults += [f"record {number} was aborted, and Kafka has it" for number in numbers if fates.get(number) == ABORTED]
    faults += [f"Kafka has record {number} {count} times" for number, count in numbers.items() if count > 1]
    for record in sent:
        wanted = of(number_of(record))
        if (record.place[1], record.key, record.value) != (wanted.partition, wanted.key, wanted.value):
            faults.append(f"{record.place} is not record {number_of(record)}")
    return faults


def _lost(number: int, fates: Mapping[int, str], in_kafka: Mapping[int, int]) -> bool:
    return fates[number] == KEPT and number not in in_kafka


def last_offsets(sent: Sequence[Sent]) -> dict[int, int]:
    last: dict[int, int] = {}
    for record in sent:
        _, partition, offset = record.place
        last[partition] = max(offset, last.get(partition, -1))
    return last


def behind(table: str, app_id: str, server: S3Server, last: Mapping[int, int]) -> dict[int, int]:
    """The number of offsets of each Kafka partition that a table lacks; empty when it has all."""
    try:
        state = read_table_state(FsspecStore(table, server.storage_options))
    except KafkaDeltaExpressError:
        state = None
    loaded = {} if state is None else state.transactions
    lag = {partition: offset - loaded.get(f"{app_id}-{partition}", -1) for partition, offset in last.items()}
    return {partition: count for partition, count in lag.items() if count > 0}


def commit_faults(
    tables: Sequence[str], server: S3Server, loaders: Sequence[Service]
) -> tuple[dict[str, int], list[str]]:
    """The number of commits that each loader logged, and those missing from the Delta log (rule 2)."""
    logs = {table: commits_of(table, server) for table in tables}
    acknowledged: Counter[str] = Counter()
    faults: list[str] = []
    for event in events(loaders):
        if event.name == "committed":
            acknowledged[event.service] += 1
            table, version = str(event.content["table"]), int(str(event.content["version"]))
            if logs[table].get(version) != event.content["commit_id"]:
                faults.append(f"{event.service} reported version {version} of {table}, which another program wrote")
    for table, log in logs.items():
        ids = Counter(commit_id for commit_id in log.values() if commit_id is not None)
        faults += [f"{table} has commit {commit_id} {count} times" for commit_id, count in ids.items() if count > 1]
        if sorted(log) != list(range(len(log))):
            faults.append(f"{table} has versions {sorted(log)}")
    return dict(acknowledged), faults


def commits_of(table: str, server: S3Server) -> dict[int, str | None]:
    store = FsspecStore(table, server.storage_options)
    ids: dict[int, str | None] = {}
    for item in store.list("_delta_log"):
        match = _COMMIT.fullmatch(item.path)
        if match is not None:
            lines = [json.loads(line) for line in (store.read(item.path) or b"").splitlines()]
            texts = [line["commitInfo"].get("userMetadata") for line in lines if "commitInfo" in line]
            ids[int(match[1])] = _commit_id(texts[0]) if texts and texts[0] else None
    return ids


def _commit_id(text: str) -> str | None:
    metadata = json.loads(text)
    return str(metadata["kafka_delta_express"]["commit_id"]) if "kafka_delta_express" in metadata else None


def strays(stage: str, server: S3Server) -> int:
    """Markers that were put aside."""
    return sum(1 for _ in FsspecStore(stage, server.storage_options).list("stray/"))
