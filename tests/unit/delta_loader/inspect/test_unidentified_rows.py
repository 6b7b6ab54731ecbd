"""``explain`` names files whose rows cannot be identified, instead of failing: other programs may write anything."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from common.errors import TableError
from common.settings import Stream
from common.spans import Offset, Position, TopicPartition
from common.tables.log_files import commit_path
from delta_loader.inspect.explain.reading import Explainer
from delta_loader.inspect.explain.view import offset_to_text
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "its rows do not name their records"), (b"no Parquet", "it cannot be read: ")],
    ids=["no offset column", "garbled"],
)
def test_file_whose_rows_cannot_be_identified_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    staging = Staging.below(tmp_path)
    (table,) = {stream.table for stream in settings_for(staging).streams}
    write_deltalake(table, pa.table({"id": [1]}))
    (file,) = Path(table.removeprefix("file://")).glob("*.parquet")
    if content is not None:
        file.write_bytes(content)

    def ends(_stream: Stream) -> Mapping[TopicPartition, Position]:
        return {staging.source(0): Position(100)}

    explainer = Explainer(Stage(staging.store(staging.stage_url), in_turn), staging.store, in_turn, ends)
    story = explainer.offset(settings_for(staging).streams[0], staging.source(0), Offset(5))
    assert f"may be in {file.name} of {table}: {problem}" in offset_to_text(story)


def test_damaged_commit_of_a_version_is_an_error(tmp_path: Path) -> None:
    staging = Staging.below(tmp_path)
    write_deltalake(staging.table, pa.table({"id": [1]}))
    staging.store(staging.table).write(commit_path(0), b"{")
    explainer = Explainer(Stage(staging.store(staging.stage_url), in_turn), staging.store, in_turn, lambda _: {})
    with pytest.raises(TableError, match=f"{commit_path(0)} of the table's log cannot be read"):
        explainer.version(staging.table, 0)
