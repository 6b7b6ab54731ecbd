import yaml
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from common.settings import FromOffsets, FromTimestamp, Start, StartAt
from common.settings.load import parse_settings, print_settings
from common.settings.values import bytes_text, duration_text, parse_bytes, parse_duration_s, parse_start, start_text
from common.spans import MAX_POSITION, Partition, Position, Topic

milliseconds = st.integers(0, 10**12)
partitions = st.integers(0, 2**31 - 1).map(Partition)
topics = st.from_regex(r"[A-Za-z._-][A-Za-z0-9._-]{0,40}", fullmatch=True)
starts = (
    st.sampled_from(StartAt)
    | st.integers(0, 4 * 10**12).map(FromTimestamp)
    | st.dictionaries(
        st.tuples(st.none() | topics.map(Topic), partitions), st.integers(0, MAX_POSITION).map(Position), min_size=1
    ).map(FromOffsets)
)
# Text that YAML can hold: no control characters except tab and line breaks, no lone surrogates.
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029\ufeff"))


@given(milliseconds)
def test_duration_round_trips(value: int) -> None:
    seconds = value / 1000
    assert round(parse_duration_s(duration_text(seconds)) * 1000) == value


@given(st.integers(1, 10**9))
def test_whole_seconds_are_exact(value: int) -> None:
    assert parse_duration_s(duration_text(float(value))) == value


@given(st.integers(0, 2**63))
def test_size_round_trips(value: int) -> None:
    assert parse_bytes(bytes_text(value)) == value


@given(starts)
def test_start_round_trips(start: Start) -> None:
    assert parse_start(start_text(start)) == start
    assert parse_start(yaml.safe_load(yaml.safe_dump(start_text(start)))) == start


def config(password: str, **kafka: object) -> str:
    return yaml.safe_dump(
        {
            "kafka": {"bootstrap.servers": "localhost:9092", "sasl.password": password, **kafka},
            "stage": {"url": "/stage", "storage_options": {"secret": password}},
            "streams": [{"app_id": "a", "topics": ["t"], "table": "/t", "columns": "id BIGINT"}],
        },
        allow_unicode=True,
    )


@given(texts)
def test_any_environment_text_is_used_unchanged_and_printed_as_its_reference(password: str) -> None:
    settings = parse_settings(config("${PASSWORD}"), {"PASSWORD": password}, "config.yaml")
    assert settings.kafka["sasl.password"] == password
    printed = yaml.safe_load(print_settings(settings))
    assert printed["kafka"]["sasl.password"] == ("${PASSWORD}" if password else "")
    assert printed["stage"]["storage_options"]["secret"] == ("${PASSWORD}" if password else "")


def settings_or_one_error(text: str) -> None:
    """Any error other than a ConfigError that names the file is a bug, and fails the test by itself."""
    try:
        parse_settings(text, {}, "config.yaml")
    except ConfigError as error:
        message = str(error)
    else:
        return
    assert message.startswith("config.yaml")


@given(st.text())
def test_any_file_gives_settings_or_one_error(text: str) -> None:
    settings_or_one_error(text)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(["kafka", "stage", "writer", "loader", "logs", "streams"]), json)
def test_any_section_gives_settings_or_one_error(section: str, value: object) -> None:
    content = {**yaml.safe_load(config("x")), section: value}
    settings_or_one_error(yaml.safe_dump(content, allow_unicode=True))


keys = st.sampled_from(
    ["app_id", "topics", "table", "columns", "derive", "partition_by", "start", "dead_letters", "kafka_columns", "x"]
)


@given(keys, json)
def test_any_value_of_a_stream_s_key_gives_settings_or_one_error(key: str, value: object) -> None:
    content = yaml.safe_load(config("x"))
    content["streams"][0][key] = value
    settings_or_one_error(yaml.safe_dump(content, allow_unicode=True))
