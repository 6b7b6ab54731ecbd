"""Why a Kafka partition does not move, in words that an operator can act on.

Rule: each reason has a short name (for metrics), a sentence with the offsets in it, and the command that fixes it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from common.json_value import Json
from common.remedies import CONFIG, MOST_COMMANDS, delta_table, new_chain, new_chain_where_different, repair, replay
from common.spans import Position, Span, TopicPartition
from common.stage.markers import GONE, Marker
from common.stage.merged import is_merged, known_as
from common.stage.repair_lock import LastRepair, ending, repair_path
from common.stage.stored import UPGRADE
from common.tables.urls import comparable
from delta_loader.plan.plan import (
    AnyMarker,
    ForeignMarker,
    Gap,
    MissingOrigin,
    NextRun,
    Overlap,
    Run,
    UnreadableMarker,
    UnsplittableOverlap,
    UpToDate,
    manifests_of,
)

START_OVER = "start the stream again under another app_id, with tables of its own"
"""The remedy for a chain of several topics that cannot be rewound: a table already has more of it, or nothing records
how far each topic was (bootstrap/plans/repair.py)."""


FOUND_BY_LOADS = frozenset(
    {
        "not_written",
        "refused_record",
        "replacement_failed",
        "replacement_refused",
        "replacement_waits",
        "too_many_refused",
    }
)
"""The reasons that only a load finds: they are not in the stage or in a table's log."""


@dataclass(frozen=True, slots=True)
class Held:
    """A Kafka partition that is staged further than it can be loaded."""

    reason: str
    problem: str
    remedy: str

    def to_json(self) -> dict[str, Json]:
        return {"reason": self.reason, "problem": self.problem, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class MainTable:
    """A stream's main table, as seen from a Kafka partition of which it has nothing."""

    url: str
    exists: bool
    others: Mapping[str, Position]
    """How far the stream's other tables have the partition; the one for dead letters too."""
    for_rows: Collection[str]
    """The URLs of the stream's row tables."""


def held(partition: TopicPartition, outcome: NextRun, main: MainTable | None = None) -> Held | None:
    """The reason behind a plan's outcome for one Kafka partition; None when it is not held.

    ``main`` is what is known where the outcome is `MissingOrigin`.
    """
    match outcome:
        case Run() | Overlap() | UpToDate():
            return None
        case Gap(position, next_start):
            skip = (
                ""
                if is_merged(partition.topic)
                else f", or give them up with `{_bootstrap('skip', partition, next_start)}`"
            )
            return Held(
                "gap",
                f"nothing is staged for the positions [{position}, {next_start}) of {partition}",
                f"stage them again with `{rewind(partition, position)}`{skip}",
            )
        case UnsplittableOverlap(position, marker) if is_merged(partition.topic):
            return Held(
                "straddle",
                f"the marker {marker.name.path} covers {marker.span}, and the table has {partition} up to {position}; "
                "which of its rows these are is unknown: after a rewind its topics may be read in another order",
                f"stage the rest again with `{rewind(partition, position)}`; where that is refused, restore the marker "
                f"that ended at {position} from stray/, in place of the later ones, or {START_OVER}",
            )
        case UnsplittableOverlap(position, marker):
            return Held(
                "straddle",
                f"the marker {marker.name.path} covers {marker.span}, and the table has {partition} up to {position}; "
                "which of its rows these are is unknown, because the stream has kafka_columns: false",
                f"stage the rest again with `{rewind(partition, position)}`",
            )
        case MissingOrigin(first):
            return _without_root(partition, first, main)
        case UnreadableMarker() | ForeignMarker() as unusable:
            return _unusable(partition, unusable)
        case _:
            assert_never(outcome)


def _without_root(partition: TopicPartition, first: Marker, main: MainTable | None) -> Held:
    table, others = "the table has no position for", {} if main is None else main.others
    is_new = main is not None and all(comparable(staged.url) != comparable(main.url) for staged in first.tables)
    if main is not None and not main.exists:
        table = f"the table {main.url} is new: it lacks" if is_new else f"the table {main.url} was deleted: it lacks"
    problem = (
        f"{table} {partition}, and its first marker {first.name.path} follows one at {first.previous} that is gone"
    )
    remedy = _root_again(partition, first, max(others.values(), default=None))
    with_rows = [url for url in others if main is not None and url in main.for_rows]
    if main is not None and is_new and with_rows:
        url = max(with_rows, key=others.__getitem__)
        problem = f"{problem}; {url} has {partition} up to {others[url]}"
        remedy = (
            f"make {url} the stream's main table again (table, or the first of tables), which says how far the stream "
            f"is, and name {main.url} after it; or {remedy}"
        )
    return Held("no_root", problem, remedy)


def _root_again(partition: TopicPartition, first: Marker, ahead: Position | None) -> str:
    """The remedy for a chain whose start is gone; a chain of several topics cannot be skipped.

    A chain that another table has, up to ``ahead``, cannot be rewound to before its start (bootstrap/apply/loaders.py).
    """
    if is_merged(partition.topic):
        return (
            f"restore the markers before it from a backup of the bucket; stage all of it again with "
            f"`{rewind(partition, Position(0))}`, if Kafka has all of it; or {START_OVER}"
        )
    root = Position(0) if first.previous is None else first.previous
    if ahead is not None and root > 0:
        return (
            f"stage its records again with `{rewind(partition, root)}`, and after their load those before them with "
            f"`{replay(partition, 0, root)}`; or leave out all records before {first.span.start} with "
            f"`{_bootstrap('skip', partition, first.span.start)}`"
        )
    return (
        f"stage what Kafka has again with `{rewind(partition, Position(0))}`, or from a later offset on if the "
        f"table should not get earlier records; or leave out all records before {first.span.start} with "
        f"`{_bootstrap('skip', partition, first.span.start)}`"
    )


def _unusable(partition: TopicPartition, marker: UnreadableMarker | ForeignMarker) -> Held:
    """Why a marker is not loaded. One of a newer release is valid, and would be staged the same way again."""
    if isinstance(marker, ForeignMarker):
        return Held(marker.reason, marker.problem, marker.remedy)
    if marker.is_newer:
        return Held("newer_marker", f"the next marker needs a newer loader: {marker.problem}", UPGRADE)
    again = f"stage its records again with `{rewind(partition, marker.name.start)}`"
    if marker.table is not None:
        again = (
            f"if {marker.table} was removed from the stream, or given to another (its table, dead_letters, routes, "
            f"route_table or tables), restore it until `delta-loader status {CONFIG}` shows nothing waiting; or "
            f"{again}: they then go to the stream's current tables"
        )
    return Held("unreadable_marker", f"the marker {marker.name.path} cannot be used: {marker.problem}", again)


def missing_file(
    partition: TopicPartition, start: Position, path: str, damage: str, *, position: Position | None, table: str
) -> Held:
    """A data file of the next marker is missing, or has another ``damage`` (`StagedFile.damage`).

    ``position`` is the main ``table``'s, None if it has nothing of the Kafka partition; a marker may begin before it.
    """
    vacuumed = "a VACUUM may have deleted it"
    why = vacuumed if position is not None else f"the table {table} was deleted, or its folder emptied"
    problem = f"{damage}: {why}" if damage == GONE else damage
    again = rewind(partition, max(start, position or start))
    return Held(
        "missing_file",
        f"the data file {path} of the marker at {start} of {partition} {problem}",
        f"stage its records again with `{again}`; where Kafka no longer has them, add --give-up",
    )


def not_written(
    partition: TopicPartition,
    position: Position,
    problem: str,
    url: str,
    *,
    has_identity: bool = True,
    flag: str | None = None,
) -> Held:
    """Spark could not write a marker's rows to the table ``url``.

    ``has_identity``: the rows carry the identity of their records. ``flag`` is the column of soft deletes, if there is
    one.
    """
    again = rewind(partition, position)
    dead = ""
    if not has_identity:
        dead = (
            " or, because with kafka_columns: false staged rows do not identify their records, set "
            f"load: append and stage its records again with `{again}`: then the record becomes a dead letter;"
        )
    if flag is not None:
        dead += (
            f" if it is a CHECK of {flag} and other columns that rows no longer pass once they are deleted, change it "
            f"so that it passes these: DROP CONSTRAINT, and ADD CONSTRAINT … CHECK ({flag} OR (…));"
        )
    return Held(
        "not_written",
        f"the rows of {partition} from {position} on could not be written to the table by Spark: {problem}",
        "see the log; the next run tries again. If the table refuses a row, change what it checks (ALTER TABLE "
        f"{delta_table(url)} …);{dead} "
        f"if a data file may not be read, grant that; if it is damaged, stage its records again with `{again}`",
    )


def under_repair(partition: TopicPartition, last: LastRepair) -> Held:
    """An operator's repair has not finished, and of its chain something could be loaded or moved that it is to move."""
    return Held(
        "under_repair",
        f"a repair of {partition} is still running, and may remove what would be loaded: "
        f"{repair_path(partition, last.number)} names its owner",
        f"loading resumes when it completes; if its process is gone, {ending(partition, last)}",
    )


def repaired(partition: TopicPartition) -> Held:
    """An operator's repair of such a chain happened between a plan and its commit."""
    return Held(
        "repaired",
        f"{partition} was repaired while it was about to be loaded",
        "no action is needed: the next run continues from there",
    )


def no_table(partition: TopicPartition, url: str) -> Held:
    """A marker waits because nothing defines the table's columns yet."""
    return Held(
        "no_table",
        f"the table {url} does not exist, and no marker of {partition} has its columns yet",
        "wait for the first flush with records, or create the table",
    )


def unknown_partition(partition: TopicPartition, paths: Iterable[str]) -> Held:
    """A marker made by hand names a partition that the topic does not have."""
    all_paths = list(paths)
    left = len(all_paths) - MOST_COMMANDS
    named = ", ".join(all_paths[:MOST_COMMANDS]) + (f" and {left:,} more" if left > 0 else "")
    return Held(
        "unknown_partition",
        f"{named} was made by hand, but the topic {known_as(partition.topic)} has no partition {partition.partition}",
        f"delete {named} from the stage, and create one for the intended partition",
    )


def staged_from(markers: Iterable[AnyMarker]) -> str | None:
    """The id of the topic that a chain's records came from, by the last of the given markers that has one."""
    named = [manifest for manifest in manifests_of(markers) if manifest.topic_id is not None]
    last = max(named, key=lambda manifest: manifest.span.start, default=None)
    return None if last is None else last.topic_id


def topic_recreated(partition: TopicPartition, chain_id: str | None, topic_id: str | None) -> Held | None:
    """Why writers hold a Kafka partition: its topic is not the one its chain came from (chain_origins.py, rule 4).

    ``chain_id`` is the result of `staged_from`, ``topic_id`` is the broker's. None where they agree, or where either is
    unknown.
    """
    if chain_id is None or topic_id is None or chain_id == topic_id:
        return None
    return Held(
        "topic_recreated",
        f"the topic {known_as(partition.topic)} was deleted and created again: its id is {topic_id}, but the staged "
        f"records of {partition} came from {chain_id}",
        new_chain(partition),
    )


def topic_truncated(partition: TopicPartition, flushed_to: Position, end: Position | None) -> Held | None:
    """Why writers hold a Kafka partition: its log ends before the end of what was staged of it.

    ``end`` is the broker's, read after the markers were; None where it is not known. The positions of a chain of
    several topics say nothing about each topic's end.
    """
    if end is None or end >= flushed_to or is_merged(partition.topic):
        return None
    return Held(
        "topic_truncated",
        f"{partition} ends at {end} in Kafka, but is staged up to {flushed_to}: its brokers lost its last records",
        new_chain_where_different(partition, end),
    )


def gone_from_kafka(partition: TopicPartition, staged_to: Position | None, first: Position | None) -> Held | None:
    """Why writers hold a Kafka partition: retention deleted the next wanted records.

    None while nothing is staged of it. ``first`` is the position of the first record that Kafka still has; None if
    unknown.
    """
    if staged_to is None or first is None or first <= staged_to:
        return None
    return Held(
        "gone_from_kafka",
        f"Kafka no longer has {Span(staged_to, first)} of {partition}: its records begin at {first}",
        f"restore them, or skip them with `{_bootstrap('skip', partition, first)}`",
    )


def stage_again(starts: Mapping[TopicPartition, Position], *, below_table: bool = False) -> str:
    """The commands that stage Kafka partitions again, each from where its load starts.

    ``below_table``: the main table has these records, and another table lacks them.
    """
    flags = ["--below-table"] if below_table else []
    commands = [f"`{repair('rewind', partition, starts[partition], *flags, '--yes')}`" for partition in sorted(starts)]
    left = len(commands) - MOST_COMMANDS
    more = [f"and so for {left:,} more, whose positions `delta-loader status {CONFIG}` shows"] if left > 0 else []
    return f"stage again with {', '.join([*commands[:MOST_COMMANDS], *more])}"


def rewind(partition: TopicPartition, to: Position) -> str:
    """The command that stages records again from a position on."""
    return _bootstrap("rewind", partition, to)


def _bootstrap(verb: str, partition: TopicPartition, to: Position) -> str:
    return repair(verb, partition, to, "--yes")
