"""One pass over one stream, in the order in which data flows: observe, fence, catch up, plan, commit, settle.

Each step is a file of its own over one context (context.py): fence.py, planning.py, commit_load.py with committer.py,
and settling.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from common.errors import KafkaDeltaExpressError
from common.settings import LoaderSettings, Stream
from common.spans import Position, TopicPartition
from common.stage.markers import Marker
from delta_loader.load.catch_up import CatchUp
from delta_loader.load.commit_load import LoadCommits
from delta_loader.load.committer import Committer
from delta_loader.load.context import LoadContext
from delta_loader.load.fence import RollbackFence
from delta_loader.load.merged import MergedLoads
from delta_loader.load.planning import plan
from delta_loader.load.report import StreamReport
from delta_loader.load.rollback import ExaminedTables
from delta_loader.load.settling import Settling
from delta_loader.plan.plan import Limits, Load
from delta_loader.stage.generations import put_older_aside
from delta_loader.stage.strays import StrayMover

if TYPE_CHECKING:
    from delta_loader.load.ports import Ports
    from delta_loader.load.replace_ranges import Replacements


class StreamLoad:
    def __init__(
        self, stream: Stream, settings: LoaderSettings, ports: Ports, report: StreamReport, examined: ExaminedTables
    ) -> None:
        self.context = LoadContext(stream, settings, ports, report, examined)
        self._limits = Limits(settings.max_files, settings.max_bytes)
        self._merged = MergedLoads(ports, self.context.reporter.held)
        committer = Committer(self.context, self._merged)
        self._fence = RollbackFence(self.context, committer)
        self._commits = LoadCommits(self.context, committer, self._merged)
        self._with_older: frozenset[TopicPartition] = frozenset()
        """The chains that keep markers from before their origin: their last marker may not be the listing's last."""

    def run(self, stop: Callable[[], bool]) -> bool:
        """Load until nothing is left, then settle. Raises KafkaDeltaExpressError, also when only one table failed.

        False where nothing was done, because the stream has more tables now (`LoadContext.observe`).
        """
        try:
            return self._run(stop)
        except KafkaDeltaExpressError:
            self.context.report_failed()
            raise

    def _run(self, stop: Callable[[], bool]) -> bool:
        context, fence = self.context, self._fence
        context.stop = stop
        if not context.observe():
            return False
        waiting = {
            partition: listed.names
            for partition, listed in context.listing.items()
            if listed.waiting(context.position(partition))
        }
        self._merged.check_repairs(waiting, context.position)
        if not fence.holds():
            self._put_strays_aside()
            CatchUp(self.context, self._limits, self._commits.commit).run()
        while not stop() and not fence.holds() and (load := self._plan()) is not None:
            self._commits.carry_out(load)
        if context.ports.replacements is not None and not stop() and not fence.holds():
            self._replace_ranges(context.ports.replacements)
        context.report_partitions()
        if not stop() and not fence.holds():
            self._settle()
        try:
            if not stop() and not fence.holds():
                self._send_refused()
        finally:
            context.tables.raise_failure()
        return True

    def inspect(self) -> None:
        self.context.inspect()

    def _plan(self) -> Load | None:
        self.context.read_markers()
        return plan(self.context, self._fence.partitions(), self._limits)

    def _put_strays_aside(self) -> None:
        """Before planning, move markers that are certain to be late claims out of the way (stage/stray_rules.py)."""
        context, stage = self.context, self.context.ports.stage
        context.read_markers()
        positions = {partition: context.finished(partition) for partition in context.listing}
        markers = [marker for partition in context.listing for marker in context.all_markers(partition)]
        context.listing, older, held = put_older_aside(
            stage, context.listing, context.origins, markers, context.tables.urls
        )
        for partition, reason in held.items():
            context.reporter.held(partition, reason)
        self._with_older = frozenset(held)
        markers = [marker for partition in context.listing for marker in context.markers(partition)]
        mover = StrayMover(stage, context.tables.urls, context.identity)
        context.listing, late = mover.put_aside(context.listing, positions, markers)
        context.reporter.strays((*older, *late))

    def _replace_ranges(self, replacements: Replacements) -> None:
        """Carry out the operators' requests to replace ranges."""
        context = self.context

        def position_now(partition: TopicPartition) -> Position | None:
            """Read again, for work outside a transaction of this loader; None also when the table was rolled back."""
            context.tables.refresh()
            is_unusable = context.tables.rolled_back or context.is_foreign(partition)
            return None if is_unusable else context.finished(partition)

        replaced = replacements.run(context.stream, position_now, context.stop, context.report.stepped)
        context.report.replacements += replaced.carried_out
        for partition, reason in replaced.held.items():
            context.reporter.held(partition, context.report.held.get(partition, reason))

    def _send_refused(self) -> None:
        """Send the dead letters of refused records to the stream's topic, up to what all tables have."""
        context = self.context
        target = context.tables.targets.get(context.stream.dead_letters)
        if context.ports.sends_refused is None or context.stream.dead_letters_topic is None or target is None:
            return
        finished = {partition: end for partition in context.listing if (end := self._finished(partition)) is not None}
        count = context.ports.sends_refused(context.stream, target, context.ids, finished)
        if count:
            context.reporter.sent_to_topic(count)

    def _finished(self, partition: TopicPartition) -> Position | None:
        """The position that all tables have passed, with its topics' positions where a marker has them."""
        position = self.context.finished(partition)
        markers = (marker for marker in self.context.markers(partition) if isinstance(marker, Marker))
        return next((marker.span.end for marker in markers if marker.span.end == position), position)

    def _settle(self) -> None:
        """Delete the markers that all tables are past."""
        context = self.context

        def check_again() -> bool:
            context.tables.refresh()
            return not self._fence.holds()

        now_ms = context.ports.clock.wall_ms()
        keep_ms = int(context.settings.marker_retention_s * 1000)
        stay = self._fence.of_unknown_history() | self._with_older
        listing = {partition: listed for partition, listed in context.listing.items() if partition not in stay}
        settling = Settling(context.ports.stage, context.tables.urls, context.finished, check_again)
        context.reporter.settled(settling.run(listing, context.identity, now_ms, keep_ms))
