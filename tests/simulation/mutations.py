"""Rules of the real code, each broken on purpose: a simulation that does not notice is no proof.

Each mutation replaces one decision of the services, for as long as its context lasts, with what the rule forbids.
``python -m tests.simulation.mutations`` shows for each the first history that fails. Rules whose breach takes a rarer
coincidence than a few hundred histories bring have tests of their own in tests/unit/test_writer_staging.py.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import typer

from common.markers import MarkerName, digest_of, folder_of, marker_from_bytes
from common.ports import Created
from common.spans import Position
from delta_loader import service as loader_service
from delta_loader.core import plan
from delta_loader.core.commits import Committed, Naming, dead_letters_commit, rows_commit
from stage_writer import service as writer_service
from stage_writer.core.batch import MessageBatch
from stage_writer.core.buffer import Buffer
from stage_writer.ports import LostClaim, Tail
from stage_writer.shell import staging
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.simulation.history import History
from tests.simulation.store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from common.ports import CreateOutcome
    from common.spans import TopicPartition
    from delta_loader.core.commits import CommitOutcome, TableCommit
    from stage_writer.core.flushing import FlushReason
    from stage_writer.ports import FlushOutcome


MOST_HISTORIES = 400


@dataclass(frozen=True, slots=True)
class Mutation:
    """One rule broken."""

    rule: str
    breaking: Callable[[], AbstractContextManager[object]]

    def first_failure(self, seeds: Iterable[int]) -> int | None:
        """The first seed whose history the books refuse, or that the services do not survive."""
        for seed in seeds:
            with self.breaking():
                try:
                    caught = bool(History(seed).run().problems)
                except (AssertionError, ValueError, KeyError):
                    caught = True
            if caught:
                return seed
        return None


def _create_is_not_exclusive() -> AbstractContextManager[object]:
    def create(self: SimulatedStore, path: str, data: bytes) -> CreateOutcome:
        self.write(path, data)
        return Created()

    return patch.object(SimulatedStore, "create", create)


def _a_lost_claim_goes_unnoticed() -> AbstractContextManager[object]:
    return patch.object(
        staging.ObjectStage, "claim", lambda self, name, data: self._store.create(name.path, data) or True
    )


def _the_marker_comes_before_the_files() -> AbstractContextManager[object]:
    run, upload = staging.Job.run, staging.ObjectStage.upload

    @contextmanager
    def broken() -> Iterator[None]:
        def claim_first(self: staging.Job) -> FlushOutcome:
            marker, data = self._seal(self._encode())
            if not self._stage.claim(marker.name, data):
                return LostClaim()
            return run(self)

        with patch.object(staging.Job, "run", claim_first), patch.object(staging.ObjectStage, "upload", upload):
            yield

    return broken()


def _the_end_is_the_furthest_span() -> AbstractContextManager[object]:
    def tail(self: staging.ObjectStage, source: TopicPartition) -> Tail | None:
        found = []
        for item in self._store.list(folder_of(source)):
            name, data = MarkerName.parse(item.path), self._store.read(item.path)
            if name is not None and data is not None:
                found.append(Tail(marker_from_bytes(name, data).span.end, name.start, item.path, digest_of(data)))
        return max(found, key=lambda one: one.end, default=None)

    return patch.object(staging.ObjectStage, "tail", tail)


def _memory_is_trusted_after_a_lost_claim() -> AbstractContextManager[object]:
    def begin_again(_self: writer_service.StageWriter, owned: writer_service.Owned) -> None:
        owned.flight = None

    return patch.object(writer_service.StageWriter, "_begin_again", begin_again)


def _repeated_records_are_taken() -> AbstractContextManager[object]:
    return patch.object(MessageBatch, "after", lambda self, _position: self)


def _a_failed_writer_seals_on_its_way_out() -> AbstractContextManager[object]:
    let_go = writer_service.StageWriter._let_go

    def keep(self: writer_service.StageWriter, sources: list[TopicPartition], reason: str) -> None:
        if reason not in {"chain", "failed"}:
            let_go(self, sources, reason)

    return patch.object(writer_service.StageWriter, "_let_go", keep)


def _two_flushes_at_once() -> AbstractContextManager[object]:
    begin = writer_service.StageWriter._begin

    def begin_regardless(self: writer_service.StageWriter, owned: writer_service.Owned, reason: FlushReason) -> None:
        owned.flight = None
        begin(self, owned, reason)

    return patch.object(writer_service.StageWriter, "_begin", begin_regardless)


def _the_next_buffer_begins_after_its_first_record() -> AbstractContextManager[object]:
    begin = Buffer.begin.__func__  # type: ignore[attr-defined]
    return patch.object(
        Buffer, "begin", classmethod(lambda cls, start, formats: begin(cls, Position(start + (start > 0)), formats))
    )


def _gaps_are_stepped_over() -> AbstractContextManager[object]:
    real = plan.next_run

    def next_run(position: Position | None, chain: list[plan.Found]) -> plan.NextRun:
        found = real(position, chain)
        return real(found.next_start, chain) if isinstance(found, plan.Gap) else found

    def claims_the_last_only(self: staging.ObjectStage, source: TopicPartition) -> Tail | None:
        tail = real_tail(self, source)
        return None if tail is None else replace(tail, end=Position(tail.end + 1))

    real_tail = staging.ObjectStage.tail

    @contextmanager
    def broken() -> Iterator[None]:
        with (
            patch.object(loader_service, "next_run", next_run),
            patch.object(staging.ObjectStage, "tail", claims_the_last_only),
        ):
            yield

    return broken()


def _txn_versions_are_not_compared() -> AbstractContextManager[object]:
    def commit(self: MemoryDeltaTables, commit: TableCommit) -> CommitOutcome:
        table = self.tables[commit.target.url]
        table.commits.append(commit)
        table.transactions |= commit.advances
        return Committed(len(table.commits))

    return patch.object(MemoryDeltaTables, "commit", commit)


def _the_last_marker_is_settled() -> AbstractContextManager[object]:
    return patch.object(
        loader_service,
        "settle_candidates",
        lambda modified_ms, position, _keep: (
            () if position is None else tuple(name for name in sorted(modified_ms) if name.start < position)
        ),
    )


def _dead_letters_come_after_the_rows() -> AbstractContextManager[object]:
    def carry_out(self: loader_service.StreamLoad, planned: plan.Load, _listing: object) -> None:
        self._ensure_tables(planned)
        naming = Naming(self._ids, self._ports.new_id())
        self._commit(rows_commit(self._targets[self._stream.table], naming, planned, None))
        dead_letters = self._targets.get(self._stream.dead_letters)
        late = None if dead_letters is None else dead_letters_commit(dead_letters, naming, planned)
        if late is not None:
            self._commit(late)

    return patch.object(loader_service.StreamLoad, "_carry_out", carry_out)


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("the claim is exclusive", _create_is_not_exclusive),
    Mutation("a lost claim is noticed", _a_lost_claim_goes_unnoticed),
    Mutation("data files come before the marker", _the_marker_comes_before_the_files),
    Mutation("the chain's end is its highest start", _the_end_is_the_furthest_span),
    Mutation("after a lost claim the chain is read again", _memory_is_trusted_after_a_lost_claim),
    Mutation("offsets rise strictly", _repeated_records_are_taken),
    Mutation("nothing is sealed on the way out of a failure", _a_failed_writer_seals_on_its_way_out),
    Mutation("one flush of a partition at a time", _two_flushes_at_once),
    Mutation("spans meet", _the_next_buffer_begins_after_its_first_record),
    Mutation("gaps hold", _gaps_are_stepped_over),
    Mutation("txn versions are compared within the commit", _txn_versions_are_not_compared),
    Mutation("the last marker stays", _the_last_marker_is_settled),
    Mutation("dead letters are committed before the rows", _dead_letters_come_after_the_rows),
)


def main() -> int:
    """Show that each mutation is caught; 1 when one is not."""
    missed = 0
    for mutation in MUTATIONS:
        seed = mutation.first_failure(range(MOST_HISTORIES))
        missed += seed is None
        typer.echo(f"{mutation.rule:48} {'NOT CAUGHT' if seed is None else f'caught by seed {seed}'}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
