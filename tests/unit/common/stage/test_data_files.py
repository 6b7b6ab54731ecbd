from dataclasses import replace
from urllib.parse import unquote

import pytest

from common.errors import MarkerError
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.data_files import DataFileName, delta_path, waiting_folder

SOURCE = TopicPartition(Topic("orders-eu-1"), Partition(3))
UNIQUE = "0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11"


def name(*values: tuple[str, str | None]) -> DataFileName:
    return DataFileName(SOURCE, Position(41), UNIQUE, values)


def test_data_file_name_has_the_source_of_its_rows() -> None:
    assert name(("date", "2026-03-01")).path == (
        f"date=2026-03-01/orders-eu-1-3-00000000000000000041-{UNIQUE}.snappy.parquet"
    )


def test_data_file_name_has_its_compression() -> None:
    compressed = replace(name(("date", None)), codec="zstd")
    assert compressed.path.endswith(f"{UNIQUE}.zstd.parquet")
    assert DataFileName.parse(compressed.path) == compressed
    with pytest.raises(MarkerError):
        DataFileName.parse(compressed.path.replace("zstd", "gzip"))


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        ("a/b", "a%2Fb"),
        ("a=b", "a%3Db"),
        ("100%", "100%25"),
        ("a b", "a b"),
        ("2026-03-01 10:00:00", "2026-03-01 10%3A00%3A00"),
        ("東京", "東京"),
        ("tab\there", "tab%09here"),
        ("..", ".."),
    ],
)
def test_partition_value_is_escaped_as_by_hive_and_spark(value: str | None, folder: str) -> None:
    path = name(("city", value)).path
    assert path.split("/")[0] == f"city={folder}"
    assert path.count("/") == 1


def test_path_in_a_delta_log_is_escaped_once_more() -> None:
    path = name(("city", "東京 100%")).path
    assert delta_path(path).startswith("city=%E6%9D%B1%E4%BA%AC%20100%2525/orders-eu-1-3-")
    assert unquote(delta_path(path)) == path


def test_overlong_partition_value_is_replaced_by_its_digest() -> None:
    paths = {name(("city", value)).path for value in ("a" * 300, "b" * 300, "ć" * 51)}
    assert len(paths) == 3
    for path in paths:
        folder = path.split("/")[0]
        assert folder.startswith("city=sha256-")
        assert len(folder) < 60
    assert "city=" + "a" * 100 + "/" in name(("city", "a" * 100)).path


def test_folder_of_waiting_files_is_the_same_however_the_url_ends() -> None:
    assert waiting_folder("s3://lake/orders/") == waiting_folder("s3://lake/orders") == "data/orders/"


@pytest.mark.parametrize(
    "path",
    ["part-00000-0b4a5dbe.snappy.parquet", "orders-0-41-0b4a.snappy.parquet", f"x/{name().path}", "", "_delta_log/1"],
)
def test_file_name_of_another_program_is_refused(path: str) -> None:
    with pytest.raises(MarkerError, match="not the name of a data file"):
        DataFileName.parse(path)
