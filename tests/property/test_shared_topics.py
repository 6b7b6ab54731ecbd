"""Two streams on one topic, staged by whole writers that each believe to have every partition.

After any steps (writers that race and crash, a rewind of one stream's chain), each chain is unbroken, names its
stream, and has every record once.
"""

import uuid

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.apply import stage as operator
from bootstrap.plans.repair import plan_rewind
from bootstrap.plans.state import Author, Ends, PartitionState
from common.settings import StartAt
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.topic_owners import StageTopicOwners
from common.storage.store import FsspecStore
from stage_writer.convert import StreamConverter
from stage_writer.fetch.shared.source import SharedTopicSource
from stage_writer.loop import StageWriter
from stage_writer.stage.staging import ObjectStage
from tests.builders import settings_of
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.writers import new_writer, runtime_of
from tests.staged import manifests

ORDERS = [TopicPartition(Topic("orders"), Partition(number)) for number in (0, 1)]
ORDERS_OF_STREAMS = (("a", "b"), ("b", "a"))
CHAINS = {"a": "orders", "b": "orders@b"}
STEPS = st.tuples(st.sampled_from(["append", "step", "step", "step", "crash", "rewind"]), st.integers(0, 7))


class World:
    """One stage, one topic, and two writers with the streams in different orders."""

    def __init__(self) -> None:
        self.root = f"memory://{uuid.uuid4().hex}"
        self.store = FsspecStore(f"{self.root}/stage")
        self.clock = HandClock()
        self.ends = dict.fromkeys(ORDERS, 0)
        self.writers = [self.writer(0), self.writer(1)]

    def writer(self, number: int) -> StageWriter:
        settings = settings_of(
            *(
                {"app_id": app_id, "topics": ["orders"], "table": f"{self.root}/{app_id}", "columns": "id INT"}
                for app_id in ORDERS_OF_STREAMS[number]
            ),
            stage={"url": f"{self.root}/stage"},
        )
        StageTopicOwners(settings, self.store, make=True).read_all()
        member = LonelyMember(self.clock, self.ends)
        source = SharedTopicSource(member, settings.chains_of, self.clock)
        stage = ObjectStage(self.store, FsspecStore, self.clock, lambda: str(uuid.uuid4()), f"w{number}")
        converters = [StreamConverter(stream) for stream in settings.streams]
        writer = new_writer(*converters, source=source, stage=stage, runtime=runtime_of(self.clock))
        source.subscribe(settings.streams, writer)
        return writer

    def do(self, what: str, number: int) -> None:
        match what:
            case "append":
                self.ends[ORDERS[number % 2]] += 1 + number
            case "step":
                self.writers[number % 2].step(0.6)
            case "crash":
                self.writers[number % 2] = self.writer(number % 2)
            case _:
                self.rewind(("a", "b")[number % 2], number // 4, number % 4)

    def rewind(self, app_id: str, partition: int, to: int) -> None:
        chain = TopicPartition(Topic(CHAINS[app_id]), Partition(partition))
        staged = operator.staged_markers(self.store, chain)
        if staged:
            ends = Ends(Position(0), Position(self.ends[ORDERS[partition]]))
            state = PartitionState(chain, app_id, StartAt.EARLIEST, ends, None, staged)
            operator.rewind(self.store, plan_rewind(state, Position(to), Author("operator", 1_000)))

    def ids(self, app_id: str, partition: int) -> list[int]:
        """The records of a stream's chain of a partition, in order; the chain is unbroken and only the stream's."""
        ids: list[int] = []
        end = 0
        for manifest in manifests(self.store, f"done/{CHAINS[app_id]}/{partition}"):
            assert (manifest.app_id, manifest.span.start) == (app_id, end)
            end = manifest.span.end
            for table in manifest.tables:
                assert table.url in (f"{self.root}/{app_id}", f"{self.root}/{app_id}_dead_letters")
                for file in table.files:
                    rows = pq.read_table(FsspecStore(table.url).open(file.path))
                    assert set(rows["_kafka_topic"].to_pylist()) == {"orders"}
                    ids += rows["id"].to_pylist()
        return ids


@given(st.lists(STEPS, max_size=40))
def test_each_stream_has_every_record_once(steps: list[tuple[str, int]]) -> None:
    world = World()
    for what, number in steps:
        world.do(what, number)
    wanted = {(app_id, number): list(range(end)) for app_id in CHAINS for number, end in enumerate(world.ends.values())}
    for _ in range(200):  # the clock moves with each step: a rewind is noticed within a minute
        if all(len(world.ids(*chain)) == len(ids) for chain, ids in wanted.items()):
            break
        for writer in world.writers:
            writer.step(0.6)
    assert {chain: world.ids(*chain) for chain in wanted} == wanted
