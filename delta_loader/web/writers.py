"""The loader's pages about writers (delta_loader/status/writers.py), from passes and Kafka's answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.lagging.history import EndHistory
from common.pages.model import Problem, ProblemLevel
from common.pages.problems import held_problems
from common.remedies import CONFIG
from common.settings import Stream
from common.sizes import counted
from common.spans import TopicPartition
from delta_loader.load.load_stats import StreamStats
from delta_loader.plan.held import Held
from delta_loader.status.writers import (
    Chains,
    KafkaAnswers,
    Unstaged,
    held_by_writers,
    late_after_s,
    unstaged,
    without_chain,
)


@dataclass(frozen=True, slots=True)
class WriterProblems:
    held: Mapping[TopicPartition, Held]
    waits: Sequence[Unstaged]

    def problems(self) -> Iterator[Problem]:
        yield from held_problems(self.held, "is held by its writers")
        if self.waits:
            worst = self.waits[0]
            records = counted(worst.records, "record")
            text = (
                f"{records} of {worst.partition} waited in Kafka for {worst.seconds // 60:,.0f} minutes when the stage "
                "was last inspected, and no writer had staged them."
            )
            remedy = (
                "check that writers run, and see their page, `/healthcheck` or log; `stage-writer check "
                f"{CONFIG}` tests what they need. Healthy ones are too slow or too few, or share their "
                "`writer.group_id` with those of another stage (runbook: StagingLags)"
            )
            title = f"{worst.partition} waits to be staged"
            yield Problem(ProblemLevel.WARNING, title, text, remedy, also=len(self.waits) - 1)


class WritersView:
    """Judges by the newest information. It is called from threads other than the loader's and the watch's."""

    def __init__(
        self, streams: Sequence[Stream], ends: EndHistory, answers: KafkaAnswers, flush_after_s: float
    ) -> None:
        """``ends`` and ``answers`` are updated by their owner."""
        self._streams = {stream.app_id: stream for stream in streams}
        self._ends = ends
        self._answers = answers
        self._flush_after_s = flush_after_s

    @property
    def are_known(self) -> bool:
        """Whether anything is known of them: Kafka answers."""
        return self._answers.is_answering

    def without_chain(self, entry: StreamStats) -> set[TopicPartition]:
        return set(without_chain(self._streams[entry.app_id], entry.seen, self._answers.partitions))

    def of(self, entry: StreamStats) -> WriterProblems:
        if entry.refreshed_s is None:
            return WriterProblems({}, ())
        stream, chains = self._streams[entry.app_id], Chains(entry.seen, entry.refreshed_s)
        held = held_by_writers(chains, self._answers)
        limit_s = late_after_s(self._flush_after_s if stream.pace.flush_after_s is None else stream.pace.flush_after_s)
        waits = unstaged(stream, chains, self._ends, self._answers, limit_s)
        return WriterProblems(held, [unstaged for unstaged in waits if unstaged.partition not in held])
