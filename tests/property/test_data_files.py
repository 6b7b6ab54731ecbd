from urllib.parse import unquote

from hypothesis import example, given
from hypothesis import strategies as st

from common.spans import MAX_POSITION, Partition, Position, Topic, TopicPartition
from common.stage.data_files import NULL_FOLDER, DataFileName, delta_path, shortened

topics = st.from_regex(r"[A-Za-z0-9._-]{1,100}", fullmatch=True)
partitions = st.builds(TopicPartition, topics.map(Topic), st.integers(0, 2**31 - 1).map(Partition))
uniques = st.uuids().map(str)
# Values that Delta cannot tell from null are null here as well.
texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: text != NULL_FOLDER)
awkward = st.sampled_from(
    ["/", "=", "%", "%2F", " ", "a b", "a/b=c%d", "東京", "Ελλάδα", "..", ".", "\n", '"', "\x7f", "\0"]
)
values = st.none() | texts | awkward
columns = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: shortened(text) == text)
long_texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=400)
names = st.builds(
    DataFileName,
    partitions,
    st.integers(0, MAX_POSITION - 1).map(Position),
    uniques,
    st.lists(st.tuples(columns, values), max_size=3).map(tuple),
)


@given(names)
@example(DataFileName(TopicPartition(Topic("a-1"), Partition(2)), Position(3), "0-a", (("p", "x-4/5"),)))
def test_data_file_name_round_trips(name: DataFileName) -> None:
    assert DataFileName.parse(name.path) == name


@given(names)
def test_each_partition_column_is_one_folder(name: DataFileName) -> None:
    assert name.path.count("/") == len(name.partition_values)


@given(names)
def test_path_in_the_delta_log_decodes_to_the_path(name: DataFileName) -> None:
    logged = delta_path(name.path)
    assert unquote(logged) == name.path
    assert logged.isascii()
    assert " " not in logged


@given(st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).map(Topic), long_texts, long_texts)
def test_every_name_fits_into_a_file_system(topic: Topic, column: str, value: str) -> None:
    name = DataFileName(TopicPartition(topic, Partition(2**31 - 1)), Position(0), "0" * 36, ((column, value),))
    parts = name.path.split("/")
    assert len(parts) == 2
    assert all(len(part.encode()) <= 255 for part in parts)
    parsed = DataFileName.parse(name.path)
    assert parsed.partition_values == ((shortened(column), None if value == NULL_FOLDER else shortened(value)),)
    assert parsed.topic_partition.topic == shortened(topic)
