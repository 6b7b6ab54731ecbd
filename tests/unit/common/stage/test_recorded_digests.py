"""Digests in names that releases have recorded: another digest would not find what an earlier release wrote."""

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import folder
from common.stage.task_files import StateFiles, TopicChanges, changes_digest, later_snapshot_name

CHANGES = TopicPartition(Topic("app-changes"), Partition(0))


def test_folder_of_a_long_partition_value() -> None:
    assert folder("ü" * 200) == "sha256-cb26b0de5a63c843909f2a32874407b3"


def test_name_of_the_later_snapshot_of_changes_in_a_topic() -> None:
    digest = changes_digest(b"a put, a delete")
    assert digest == "592919f5c8b01786765f43ecbc3b3310"
    changes = TopicChanges(CHANGES, None, (Span(Position(3), Position(5)),), 15, digest, 0)
    name = later_snapshot_name(CHANGES, Position(7), 1, StateFiles(None, (changes,)))
    assert name.unique == "of-98f53af7d84ae9a83b035f84042645e3"
