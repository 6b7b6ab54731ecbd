"""The repair lock: of several concurrent repairs of one Kafka partition, one is carried out, the others refused.

Two rewinds planned on the same listing undo each other's work: each deletes the markers that it saw, and sets the start
by those that it kept, so one rewind may leave out positions that the other was to stage again.

Rules:

1. A repair's turn is a number of its partition, claimed by an exclusive create *before* the first change:
   ``repair/<topic>/<partition>/<number, 20 digits>.repair``. When the work is done, ``….ended`` is created next to it.
2. The last number is looked up *before* the chain is read, and the next one is claimed. A plan is therefore carried out
   only if no other repair has started since it was made; a repair that loses the claim reads again.
3. While the last turn has not ended, its repair may be in progress. A running repair cannot be distinguished from a
   dead one: a person decides (``--take-over`` with that turn's number), not a clock.
4. A repair checks before each of its changes whether the next number has been claimed, and stops if so.
5. Turns are never deleted, so no late request frees a number. They record which program repaired what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.errors import UsageError
from common.ports import ObjectStore
from common.remedies import repair
from common.sizes import time_text
from common.spans import TopicPartition
from common.stage.stored import read_if_readable
from common.stored_types import StoredForm

REPAIR = "repair"
_COMMAND = re.compile(r"bootstrap (?P<verb>[a-z]+)(?P<flags>( --[a-z-]+( \d+)?)*)", re.ASCII)
_OF_ONE_PARTITION = frozenset({"rewind", "skip", "restart"})
_NUMBER = re.compile(r".*/(?P<number>\d{20})\.(?P<kind>repair|ended)", re.ASCII)


@dataclass(frozen=True, slots=True)
class RepairEntry:
    """Which program started a repair, when, and of what."""

    author: str
    began_ms: int
    work: str
    unique: str
    """Unique per command, so no two claims have the same bytes (common/storage/store.py, rule 2)."""

    def to_bytes(self) -> bytes:
        return _FORM.to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> RepairEntry | None:
        """The inverse; None for content that this program cannot read."""
        return read_if_readable(_FORM, "a turn", data)

    def __str__(self) -> str:
        return f"`{self.work}` by {self.author}, begun at {time_text(self.began_ms)}"


_FORM = StoredForm(RepairEntry)


@dataclass(frozen=True, slots=True)
class LastRepair:
    number: int = 0
    """0 if there was none yet."""
    ended: bool = True
    entry: RepairEntry | None = None
    """What the repair is; None where it has ended, or where that cannot be read."""


def repairs_folder(partition: TopicPartition) -> str:
    return f"{REPAIR}/{partition.topic}/{partition.partition}/"


def repair_path(partition: TopicPartition, number: int) -> str:
    return f"{repairs_folder(partition)}{number:020d}.repair"


def ended_path(partition: TopicPartition, number: int) -> str:
    """The object that marks a turn as ended."""
    return f"{repairs_folder(partition)}{number:020d}.ended"


def last_repair(store: ObjectStore, partition: TopicPartition) -> LastRepair:
    """The partition's newest repair, running or ended. Raises StoreError."""
    matches = (_NUMBER.fullmatch(item.path) for item in store.list(repairs_folder(partition)))
    repairs = [(int(match["number"]), match["kind"]) for match in matches if match]
    number = max((number for number, kind in repairs if kind == "repair"), default=0)
    if number == 0 or (number, "ended") in repairs:
        return LastRepair(number)
    data = store.read(repair_path(partition, number))
    return LastRepair(number, ended=False, entry=None if data is None else RepairEntry.from_bytes(data))


def ending(partition: TopicPartition, last: LastRepair) -> str:
    """What ends an unfinished repair whose process is gone."""
    take_over = f"--take-over {last.number}"
    command = None if last.entry is None else _COMMAND.fullmatch(last.entry.work)
    if command is None:  # of an older release, or edited: no text to paste into a shell
        return f"check its plan and use {take_over}"
    if command["verb"] not in _OF_ONE_PARTITION:
        return f"give its command again (`{command[0]}`), with {take_over}"
    flags = (*command["flags"].split(), take_over, "--yes")
    return f"finish it with `{repair(command['verb'], partition, None, *flags)}`"


def repair_running(partition: TopicPartition, last: LastRepair) -> UsageError:
    """The refusal of rule 3."""
    who = "another repair" if last.entry is None else str(last.entry)
    msg = f"a repair of {partition} is still running: {who} ({repair_path(partition, last.number)})"
    return UsageError(
        msg, f"wait for it; when its process is gone, check the plan again and apply it with --take-over {last.number}"
    )


def overtaken(partition: TopicPartition, number: int) -> UsageError:
    """The refusal of rules 2 and 4: ``number`` is the turn that another repair has."""
    msg = f"another repair of {partition} has started: {repair_path(partition, number)} names its owner"
    return UsageError(msg, "wait until it ends, and check the plan again")
