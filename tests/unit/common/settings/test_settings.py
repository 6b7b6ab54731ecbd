"""Settings from a file: the values in force, and errors with a remedy."""

import os
import re
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from inspect import getsource
from pathlib import Path
from pkgutil import iter_modules

import pytest
import yaml

import common.stage
from common import reference
from common.cli import ConfigArgument, PrintConfigOption, new_app, run, settings_from
from common.errors import ConfigError
from common.settings import FromOffsets, FromTimestamp, Settings, StartAt, Stream
from common.settings.checks.tables import STAGE_FOLDERS
from common.settings.load import load_settings, parse_settings, print_settings
from common.settings.masking import References
from common.settings.section import fields_of
from common.spans import Partition, Topic
from common.stage.appeared_routes import ROUTES
from common.stage.chain_origins import BEGIN
from common.stage.data_files import STAGED
from common.stage.failures import FAILURES
from common.stage.idle import IDLE
from common.stage.loading import LOADING
from common.stage.markers import DONE, STRAY
from common.stage.notifications import NOTIFICATIONS
from common.stage.repair_lock import REPAIR
from common.stage.replacements import REPLACE
from common.stage.resolutions import ACCEPT
from common.stage.sent import SENT
from common.stage.task_files import OUTBOX, STATE
from common.stage.versions import COLUMNS, SCHEMA
from common.storage.store import PROBES
from tests.builders import content_of, instance

MINIMAL = """
kafka: {bootstrap.servers: "localhost:9092"}
stage: {url: /data/stage}
streams:
  - {app_id: orders, topics: [orders], table: /data/orders, columns: "id BIGINT, city STRING"}
"""

app = new_app("Read settings.")


def bomb(template: str) -> str:
    """A short config of which aliases make a billion values."""
    levels = ["k0: &k0 {x: 1}"]
    levels += [f"k{n}: &k{n} {template.format(', '.join([f'*k{n - 1}'] * 9))}" for n in range(1, 10)]
    return f"{MINIMAL}logs: {{{', '.join(levels)}}}\n"


@app.command()
def show(*, config: ConfigArgument, print_config: PrintConfigOption = False) -> None:
    settings_from(config, print_config=print_config)


@app.command()
def other() -> None:
    """Do nothing."""


def parse(text: str, environ: Mapping[str, str] | None = None) -> Settings:
    return parse_settings(text, environ or {}, "config.yaml")


def with_stream(**changes: object) -> str:
    content = yaml.safe_load(MINIMAL)
    content["streams"][0].update(changes)
    return yaml.safe_dump(content)


def with_section(**sections: object) -> str:
    return yaml.safe_dump({**yaml.safe_load(MINIMAL), **sections})


def with_kafka(key: str, value: object) -> str:
    return with_section(kafka={"bootstrap.servers": "a", key: value})


def another_stream(**changes: object) -> str:
    content = yaml.safe_load(MINIMAL)
    content["streams"].append({**content["streams"][0], **changes})
    return yaml.safe_dump(content)


# Values in force.


def test_example_in_the_reference_is_a_valid_config() -> None:
    settings = parse(reference.EXAMPLE)
    assert settings.kafka == {"bootstrap.servers": "localhost:9092"}
    assert settings.stage.url == "s3://lake/stage"
    assert settings.writer.flush_after_s == 60
    assert settings.writer.flush_bytes == 128 * 2**20
    assert settings.writer.memory_bytes == 2**30
    assert settings.loader.schedule == "15m"
    assert settings.loader.marker_retention_s == 86400
    (stream,) = settings.streams
    assert stream.layout.partition_by == ("date",)
    assert stream.start is StartAt.EARLIEST
    assert stream.dead_letters == "s3://lake/tables/web_requests_dead_letters"


def test_example_shows_every_default() -> None:
    content = yaml.safe_load(reference.EXAMPLE)
    shorter = {key: content[key] for key in ("kafka", "stage", "streams")}
    full, bare = parse(reference.EXAMPLE), parse(yaml.safe_dump(shorter))
    assert full.writer == bare.writer
    assert full.loader.model_copy(update={"spark": {}}) == bare.loader


def test_printed_settings_parse_to_the_same_settings() -> None:
    start = {"orders": {0: 120}, 1: 340}
    settings = parse(with_stream(start=start, kafka_columns=False, topics=["orders", "orders-eu"]))
    assert parse(print_settings(settings)) == settings


def test_parts_of_a_stream_are_invisible_in_files_and_follow_copies() -> None:
    stream = parse(MINIMAL).streams[0]
    changed = stream.model_copy(update={"kafka_columns": False, "envelope": "canal", "flush_records": 7})
    assert (changed.kafka_columns, changed.record.envelope, changed.pace.flush_records) == (False, "canal", 7)
    assert changed.model_dump(exclude_unset=True) == stream.model_dump(exclude_unset=True) | {
        "kafka_columns": False,
        "envelope": "canal",
        "flush_records": 7,
    }
    assert list(changed.model_dump(by_alias=True)) == [key for key, _ in fields_of(Stream)]


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("60s", 60), ("1.5m", 90), ("24h", 86400), ("7d", 604800), (90, 90)]
)
def test_duration_has_a_unit_or_is_in_seconds(text: object, seconds: float) -> None:
    assert parse(with_section(writer={"flush_after": text})).writer.flush_after_s == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("128MiB", 2**27), ("1GB", 10**9), ("1.5 KiB", 1536), (4096, 4096), ("4096", 4096)]
)
def test_size_has_a_unit_or_is_in_bytes(text: object, size: int) -> None:
    assert parse(with_section(writer={"flush_bytes": text})).writer.flush_bytes == size


def test_on_marker_loader_keeps_markers_for_minutes_by_default() -> None:
    loader = parse(with_section(loader={"schedule": "on-marker"})).loader
    assert (loader.schedule, loader.marker_retention_s) == ("on-marker", 600)
    loader = parse(with_section(loader={"schedule": "on-marker", "marker_retention": "24h"})).loader
    assert loader.marker_retention_s == 86_400
    assert parse(with_section(loader={"schedule": "5m"})).loader.marker_retention_s == 86_400
    with pytest.raises(ConfigError, match=r"loader.schedule.*on-marker"):
        parse(with_section(loader={"schedule": "on_marker"}))
    with pytest.raises(ConfigError, match=r"loader.clean_up"):
        parse(with_section(loader={"clean_up": "on-marker"}))
    assert parse(with_section(loader={"clean_up": False})).loader.clean_up == "off", "what YAML makes of off"


def test_control_topic_needs_an_on_marker_loader_and_a_topic_of_its_own() -> None:
    waiting = {"schedule": "on-marker", "control_topic": "control.of-lake_1"}
    assert parse(with_section(loader=waiting)).loader.control_topic == "control.of-lake_1"
    with pytest.raises(ConfigError, match=r"control_topic is 'c', and schedule is '15m'.*set that schedule"):
        parse(with_section(loader={"control_topic": "c"}))
    for name in ("", "two words", "..", "x" * 250, "ümlaut"):
        with pytest.raises(ConfigError, match=r"loader.control_topic.*249 letters"):
            parse(with_section(loader={**waiting, "control_topic": name}))
    topic = parse(with_section(loader=waiting)).streams[0].topics[0]
    with pytest.raises(ConfigError, match=r"which the stream .* reads; use a topic that no stream reads"):
        parse(with_section(loader={**waiting, "control_topic": topic}))


@pytest.mark.parametrize("section", ["writer", "loader"])
@pytest.mark.parametrize("token", ["", "too-short", 7, "ünguessable-and-long"])
def test_guessable_token_is_refused_and_not_shown(section: str, token: object) -> None:
    with pytest.raises(ConfigError, match=rf"{section}.http_token.*at least 16") as caught:
        parse(with_section(**{section: {"http_token": token}}))
    assert not token or str(token) not in caught.value.problem


def test_token_is_not_printed() -> None:
    settings = parse(with_section(writer={"http_token": "${TOKEN}"}), {"TOKEN": "0123456789abcdef"})
    assert settings.writer.http_token == "0123456789abcdef"
    assert "0123456789abcdef" not in print_settings(settings)


def test_start_positions_name_topics_of_the_stream() -> None:
    with pytest.raises(ConfigError, match="start has positions of 'ordres', which is not in topics"):
        parse(with_stream(start={"ordres": {0: 5}}))
    assert parse(with_stream(topics=["^ord"], start={"ordres": {0: 5}}))


def test_start_is_a_word_a_timestamp_or_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()

    def start(value: object) -> object:
        return parse(with_stream(start=value)).streams[0].start

    assert start("latest") is StartAt.LATEST
    assert start("2026-03-01T00:00:00Z") == FromTimestamp(1_772_323_200_000)
    assert start(1_772_323_200_000) == start("1772323200000") == FromTimestamp(1_772_323_200_000)
    assert start("2026-03-01T01:00:00+01:00") == FromTimestamp(1_772_323_200_000)
    assert parse(MINIMAL.replace("columns:", "start: 2026-03-01, columns:")).streams[0].start == FromTimestamp(
        1_772_323_200_000
    )
    monkeypatch.undo()
    time.tzset()
    offsets = instance(FromOffsets, start({"orders": {0: 120}, 0: 7, 1: 340}))
    assert offsets.position(Topic("orders"), Partition(0)) == 120
    assert offsets.position(Topic("other"), Partition(0)) == 7
    assert offsets.position(Topic("other"), Partition(2)) is None
    assert offsets.position(Topic("other"), Partition(1)) == 340


@pytest.mark.parametrize("number", [120, 1_772_323_200, 202_603_011_000, 20_260_301_100_000, True])
def test_ambiguous_number_is_not_a_start(number: int) -> None:
    with pytest.raises(ConfigError, match="is not a start; write earliest"):
        parse(with_stream(start=number))


def test_kafka_columns_can_be_turned_off() -> None:
    assert parse(MINIMAL.replace("columns:", "kafka_columns: off, columns:")).streams[0].kafka_columns is False


def test_topic_expression_matches_whole_names_and_means_several_topics() -> None:
    stream = parse(with_stream(topics=["^orders-.*"])).streams[0]
    assert stream.takes("orders-eu")
    assert not stream.takes("orders")
    assert not stream.takes("my-orders-eu")
    assert stream.several_topics
    (stream,) = parse(with_stream(topics=["^orders|payments"])).streams
    assert [topic for topic in ("orders", "payments", "old-payments") if stream.takes(topic)] == ["orders", "payments"]


def test_values_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p: [#' \n", encoding="utf-8")
    text = f"""
kafka: {{bootstrap.servers: "${{HOST}}:9092", sasl.password: "${{file:{tmp_path}/password}}"}}
stage: {{url: "s3://${{BUCKET}}/stage", storage_options: {{note: "$${{kept}}"}}}}
streams:
  - {{app_id: orders, topics: [orders], table: /data/orders, columns: "id BIGINT"}}
"""
    settings = parse(text, {"HOST": "broker", "BUCKET": "lake"})
    assert settings.kafka == {"bootstrap.servers": "broker:9092", "sasl.password": "p: [#' "}
    assert settings.stage.url == "s3://lake/stage"
    assert settings.stage.storage_options == {"note": "${kept}"}


def test_empty_variable_makes_no_folder_of_the_root() -> None:
    with pytest.raises(ConfigError, match=r"stage\.url: \$\{ROOT\} is empty, so \$\{ROOT\}/stage would be /stage"):
        parse("stage: {url: '${ROOT}/stage'}", {"ROOT": ""})
    settings = parse(with_stream(table="/data/orders${SUFFIX}", app_id="${PREFIX}orders"), {"SUFFIX": "", "PREFIX": ""})
    assert (settings.streams[0].table, settings.streams[0].app_id) == ("/data/orders", "orders")


# Secrets.


def test_secrets_are_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain").write_text("hunter2-in-a-file\n", encoding="utf-8")
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
kafka:
  bootstrap.servers: localhost:9092
  sasl.username: me
  sasl.password: hunter2
  ssl.key.password: hunter2
  sasl.oauthbearer.config: principal=hunter2
  client.id: "x-${{file:{tmp_path}/plain}}"
stage:
  url: s3://me:hunter2@host/stage
  storage_options:
    key: hunter2
    secret: hunter2
    connection_string: AccountKey=hunter2
    client_kwargs: {{aws_session_token: hunter2, endpoint_url: "http://here"}}
loader: {{spark: {{spark.hadoop.fs.s3a.secret.key: hunter2}}}}
streams:
  - {{app_id: orders, topics: [orders], table: /data/orders, columns: "id BIGINT"}}
""",
        encoding="utf-8",
    )
    assert run(app, ["show", str(config), "--print-config"]) == 0
    printed = capfd.readouterr().out
    assert "hunter2" not in printed
    assert "me" in printed
    assert "endpoint_url: http://here" in printed
    assert yaml.safe_load(printed)["stage"]["storage_options"]["secret"] == "********"


@pytest.mark.parametrize(
    "text",
    [
        with_kafka("sasl.password", ["hunter2"]),
        with_kafka("sasl.password", {"x": "hunter2"}),
        with_section(writer={"http": "https://me:hunter2@host"}),
        with_section(stage={"url": "", "storage_options": [{"secret": "hunter2"}]}),
        MINIMAL + "  sasl.password: hunter2\n  : [",
        MINIMAL + "x: *hunter2\n",
        MINIMAL + "x: !hunter2 y\n",
        MINIMAL + "x: [hunter2\n",
        with_section(writer={"flush_after": "${file:FILE}"}),
        with_section(writer={"flush_after": "a${file:FILE}b"}),
    ],
)
def test_secrets_are_not_in_errors(text: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        parse(text.replace("FILE", str(tmp_path / "secret")))
    assert "hunter2" not in str(caught.value)


SECRETS_BY_NAME = """
kafka:
  bootstrap.servers: localhost:9092
  ssl.keystore.key: hunter2
stage:
  url: /stage
  storage_options:
    s3_additional_kwargs: {SSECustomerKey: hunter2, SSECustomerAlgorithm: AES256}
    client_kwargs: {headers: {Authorization: Basic hunter2, X-Team: lake}}
    token: {client_email: hunter2}
    odd: "Authorization: Bearer hunter2"
    link: https://host/x?sv=1&sig=hunter2&y=2
loader:
  spark:
    spark.hadoop.fs.s3a.encryption.key: hunter2
    spark.hadoop.fs.s3a.client.s3.custom.headers: "X=hunter2"
    spark.hadoop.fs.azure.sas.box.account: hunter2
    spark.driver.extraJavaOptions: -Xss4m -Djavax.net.ssl.trustStorePassword=hunter2 -Dx=y
    spark.io.encryption.keySizeBits: 256
streams:
  - {app_id: orders, topics: [orders], table: /data/orders, columns: "id BIGINT, s STRUCT<token: STRING>",
     derive: {label: "concat('secret=', id)"}}
"""


def test_secrets_of_every_kind_are_masked_and_other_values_printed() -> None:
    printed = print_settings(parse(SECRETS_BY_NAME))
    assert "hunter2" not in printed
    shown = yaml.safe_load(printed)
    assert shown["stage"]["storage_options"]["s3_additional_kwargs"]["SSECustomerAlgorithm"] == "AES256"
    assert shown["stage"]["storage_options"]["client_kwargs"]["headers"]["X-Team"] == "lake"
    assert shown["stage"]["storage_options"]["link"] == "https://host/x?sv=1&sig=********&y=2"
    spark = shown["loader"]["spark"]
    assert spark["spark.driver.extraJavaOptions"] == "-Xss4m -Djavax.net.ssl.trustStorePassword=******** -Dx=y"
    assert spark["spark.io.encryption.keySizeBits"] == 256
    assert shown["streams"][0]["derive"] == {"label": "concat('secret=', id)"}
    assert "token: STRING" in str(shown["streams"][0]["columns"])


FROM_OUTSIDE = (
    MINIMAL.replace("/data/orders", "'${TABLE}'")
    + """
writer: {flush_after: "${FLUSH}", group_id: "x$${y}"}
loader: {spark: {spark.some.name: "${NAMED}", spark.other: "a-${NAMED}-b", spark.plain: plain}}
"""
)


def test_environment_value_is_printed_as_its_reference() -> None:
    environ = {"TABLE": "/data/orders-of-ada", "FLUSH": "90s", "NAMED": "hunter2"}
    settings = parse(FROM_OUTSIDE, environ)
    assert settings.writer.flush_after_s == 90
    printed = print_settings(settings)
    shown = yaml.safe_load(printed)
    assert (shown["writer"]["flush_after"], shown["writer"]["group_id"]) == ("${FLUSH}", "x$${y}")
    assert shown["loader"]["spark"] == {
        "spark.some.name": "${NAMED}", "spark.other": "a-${NAMED}-b", "spark.plain": "plain",
    }  # fmt: skip
    assert shown["streams"][0]["table"] == "${TABLE}"
    assert "hunter2" not in printed
    assert "orders-of-ada" not in printed, "values derived from it do not show it"
    longer = References(texts={"orders": "${A}", "orders-of-ada": "${B}"}).restored("x/orders-of-ada")
    assert longer == "x/${B}", "a value that is part of another one does not leave the rest of it"
    assert parse(printed, environ) == settings


def test_error_that_quotes_an_environment_value_shows_its_reference() -> None:
    stream = {"topics": ["${TOPIC}"], "columns": "id BIGINT"}
    streams = [{**stream, "app_id": name, "table": "/data/both"} for name in ("a", "b")]
    with pytest.raises(ConfigError, match=r"both read the topic '\$\{TOPIC\}'"):
        parse(with_section(streams=streams), {"TOPIC": "hunter2"})


def test_yaml_merge_key_copies_another_map() -> None:
    first, second = parse(
        """
kafka: {bootstrap.servers: a}
stage: {url: /stage}
streams:
  - &orders {app_id: orders, topics: [orders], table: /tables/orders, columns: id BIGINT}
  - {<<: *orders, app_id: returns, topics: [returns]}
"""
    ).streams
    assert (first.app_id, second.app_id) == ("orders", "returns")
    assert (second.topics, second.table) == (("returns",), first.table)


def test_environment_value_is_not_in_errors() -> None:
    for text in ("writer: {flush_after: '${NAMED}'}", "writer: {memory: 'a${NAMED}b'}", "writer: {http: '${NAMED}'}"):
        with pytest.raises(ConfigError, match=r"\$\{NAMED\}") as caught:
            parse(f"{MINIMAL}\n{text}\n", {"NAMED": "hunter2"})
        assert "hunter2" not in str(caught.value)


# Wrong configs: each gives one readable error, and exit code 2.

TYPES = "id BIGINT, a INT, b DATE, c STRING, flag BOOLEAN, city STRUCT<name: STRING, tags: ARRAY<STRING>>"
WRONG = {
    "a catalog's name": (with_stream(table="main.shop.orders"), ["table", "DESCRIBE DETAIL main.shop.orders"]),
    "an unknown section": (with_section(steams=[]), ["steams is not a setting", "did you mean streams?"]),
    "an unknown key": (with_section(writer={"flush_afer": "60s"}), ["writer.flush_afer", "did you mean flush_after?"]),
    "a key that begins like another": (with_section(writer={"http_port": 80}), ["http_port", "did you mean http?"]),
    "a key of two other sections": (
        "flush_after: 60s\n" + MINIMAL,
        ["flush_after is not a setting here; flush_after is a key of writer and of streams"],
    ),
    "a key of a section inside": (with_stream(keys=["id"]), ["streams[0].keys", "keys is a key of streams.merge"]),
    "a section inside another": (
        with_section(writer={"stage": {"url": "x"}}),
        ["writer.stage", "stage is a key of the file's top level"],
    ),
    "a section that should be a list": (
        with_section(streams={"app_id": "a"}),
        ["streams", "one `- item` on each line"],
    ),
    "the program's own name of a key": (with_section(writer={"flush_after_s": 60}), ["did you mean flush_after?"]),
    "records without a schema": (
        with_stream(format="avro"),
        ["the schema of the records is unknown", "framing: confluent"],
    ),
    "a JSON Schema for Avro": (
        with_stream(format="avro", schema_file="/s.avsc", validate=True),
        ["validate is for JSON, and format is avro"],
    ),
    "a check without a schema": (with_stream(validate=True), ["validate needs a JSON Schema"]),
    "a schema that is not used": (with_stream(schema_file="/s.json"), ["format: json reads by the columns alone"]),
    "two schemas of a message": (
        with_stream(format="protobuf", framing="confluent", schema_file="/s.proto"),
        ["with framing: confluent the registry has the schema"],
    ),
    "a message of no schema": (with_stream(message="shop.Order"), ["message only applies to format: protobuf"]),
    "dead letters into an input topic": (with_stream(dead_letters_topic="orders"), ["which the stream itself reads"]),
    "dead letters into an invalid topic": (
        with_stream(dead_letters="kafka://two words"),
        ["dead_letters_topic (orders): 'two words' is not a topic name; use 1 to 249 letters"],
    ),
    "null for text": (
        with_stream(columns=None),
        ["columns (orders): null is no value; write one, or leave the key out"],
    ),
    "two documents": (MINIMAL + "---\n" + MINIMAL, ["a second document begins at line 6", "a file of its own"]),
    "a list of columns": (
        with_stream(columns=["id BIGINT"]),
        ["columns (orders): [id BIGINT] is not text; write one text"],
    ),
    "a part as if it were a section": (
        with_stream(record={"format": "json"}),
        ["streams[0].record (orders) is not a setting"],
    ),
    "a part by its alias": (with_stream(**{"(record)": {"format": "json"}}), ["is not a setting"]),
    "the program's own name of a key of a part": (
        with_stream(flush_after_s="60s"),
        ["streams[0].flush_after_s (orders) is not a setting", "did you mean flush_after?"],
    ),
    "a wrong value in each of two parts": (
        with_stream(format="xml", flush_after="soon"),
        ["2 settings are wrong", "streams[0].format (orders): 'xml'", "streams[0].flush_after (orders): 'soon'"],
    ),
    "conflicting keys of two parts": (
        with_stream(rescue_column="rest", on_fail="count"),
        ["2 settings are wrong", "streams[0] (orders) rescue_column is given", "streams[0] (orders) on_fail is count"],
    ),
    "a key given twice": (MINIMAL + "stage: {url: x}\n", ["'stage' is given twice", "line 6", "→ fix that line\n"]),
    "a number and a truth value that are one key": (
        MINIMAL + "logs: {1: info, true: debug}\n",
        ["the keys 1 and true are the same without quotes"],
    ),
    "a choice as a key": (with_stream(evolve=True), ["evolve (orders) is not a setting", "unknown_fields: evolve?"]),
    "a map for a word": (with_stream(load={"max_files": None}), ["load (orders): {max_files: null} is a map", "'add'"]),
    "a topic without slashes": (with_stream(dead_letters="kafka:letters"), ["did you mean kafka://letters?"]),
    "a key given twice in a merged map": (
        MINIMAL + "logs: {<<: &logs {level: info, level: debug}}\n",
        ["'level' is given twice"],
    ),
    "a part that contains itself": (MINIMAL + "logs: &logs {level: *logs}\n", ["contains itself"]),
    "aliases of aliases": (
        bomb("[{}]"),
        ["aliases (*name) repeat more than 100,000 values", "line 6", "fix that line"],
    ),
    "maps of maps": (bomb("{{<<: [{}]}}"), ["aliases (*name) repeat", "line 6"]),
    "brackets nested too deeply": ("kafka: " + "[" * 5000 + "]" * 5000, ["nested too deeply"]),
    "a column in another case": (with_stream(partition_by=["ID"]), ["'ID'", "did you mean 'id'?"]),
    "true for a count": (with_section(writer={"flush_records": True}), ["writer.flush_records", "whole number"]),
    "true for a count that may be missing": (
        with_section(table_services={"optimize": {"min_files_busy": True}}),
        ["min_files_busy", "whole number"],
    ),
    "a duration longer than a century": (
        with_section(writer={"flush_after": "99999999d"}),
        ["writer.flush_after", "36500d"],
    ),
    "an infinite duration": (
        with_section(loader={"marker_retention": float("inf")}),
        ["loader.marker_retention", "36500d"],
    ),
    "an infinite schedule": (with_section(loader={"schedule": float("inf")}), ["loader.schedule", "36500d"]),
    "invalid YAML": ("kafka: [", ["is not YAML", "line 1"]),
    "a list": ("- a\n", ["has no settings", "kafka, stage and streams"]),
    "nothing": ("", ["has no settings"]),
    "a missing section": (yaml.safe_dump({"kafka": {"bootstrap.servers": "a"}}), ["stage is missing", "streams"]),
    "a missing key": (MINIMAL.replace("table: /data/orders, ", ""), ["streams[0].table (orders) is missing"]),
    "an invalid duration": (with_section(writer={"flush_after": "1 minute"}), ["flush_after", "'1 minute'", "60s"]),
    "a zero duration": (
        with_section(writer={"flush_after": "0s"}),
        ["writer.flush_after: 0 is too small; it must be more than 0\n"],
    ),
    "an invalid size": (
        with_section(writer={"flush_bytes": "128 megs"}),
        ["writer.flush_bytes", "'128 megs'", "128MiB"],
    ),
    "too little memory": (with_section(writer={"memory": "1kB"}), ["writer.memory", "1000", "1048576"]),
    "a fraction for a count": (with_section(writer={"flush_records": 1.5}), ["writer.flush_records", "1.5", "digits"]),
    "too many threads": (with_section(writer={"upload_threads": 1000}), ["upload_threads", "1000", "256"]),
    "neither true nor false": (with_section(writer={"report_positions": "perhaps"}), ["report_positions", "'perhaps'"]),
    "a section that is text": (with_section(writer="fast"), ["writer: 'fast'", "{key: value}"]),
    "a section that is null": (with_section(loader=None), ["loader: null", "{key: value}"]),
    "an invalid schedule": (with_section(loader={"schedule": "sometimes"}), ["loader.schedule", "'sometimes'", "15m"]),
    "an invalid hour in a cron line": (
        with_section(loader={"schedule": "0 25 * * *"}),
        ["loader.schedule: '0 25 * * *' is not a cron line: the hour cannot be '25'"],
    ),
    "values out of their bounds": (
        with_section(
            writer={"http": "127.0.0.1:65536"}, loader={"schedule": "0s", "marker_retention": -1, "max_bytes": -1}
        ),
        [
            "writer.http: '127.0.0.1:65536' is not an address",
            "loader.schedule: '0s' is not a schedule",
            "loader.marker_retention: -1 is not a duration",
            "loader.max_bytes: -1 is not a size",
        ],
    ),
    "a clean-up cron line without a valid day": (
        with_section(loader={"clean_up": "0 0 30 2 *"}),
        ["loader.clean_up: '0 0 30 2 *' is not a cron line: no such day exists"],
    ),
    "an invalid minute of the table services": (
        with_section(table_services={"schedule": "61 * * * *"}),
        ["table_services.schedule: '61 * * * *'", "the minute cannot be '61'"],
    ),
    "a stream's own cron line": (
        with_stream(schedule="0 0 * * noday"),
        ["streams[0].schedule (orders): '0 0 * * noday'", "the day of the week cannot be 'noday'"],
    ),
    "a time of day": (MINIMAL + "loader: {schedule: 15:00}\n", ["loader.schedule", "'15:00'", "cron line"]),
    "minutes and seconds": (MINIMAL + "writer: {flush_after: 1:30.5}\n", ["writer.flush_after", "'1:30.5'", "60s"]),
    "a count in octal": (MINIMAL + "writer: {flush_records: 0100}\n", ["begins with 0", "line 6, column 25"]),
    "a position in octal": (MINIMAL.replace("columns:", "start: {0: 0120}, columns:"), ["begins with 0", "octal"]),
    "a partition in octal": (MINIMAL.replace("columns:", "start: {010: 5}, columns:"), ["begins with 0", "octal"]),
    "a date that does not exist": (
        MINIMAL.replace("columns:", "start: 2026-02-30, columns:"),
        ["does not exist", "line"],
    ),
    "a time that does not exist": (
        MINIMAL.replace("columns:", "start: 2026-02-30T00:00:00Z, columns:"),
        ["does not exist", "quotes, at line 5"],
    ),
    "a number that is too long": (MINIMAL + f"writer: {{flush_records: {'9' * 5000}}}\n", ["line 6, column 25"]),
    "a tag that does not fit": (MINIMAL + "writer: {flush_records: !!bool x}\n", ["line 6, column 25"]),
    "yes for a share": (
        with_section(writer={"dead_letter_alarm": True}),
        ["writer.dead_letter_alarm", "is not a number; write one such as 0.5"],
    ),
    "yes for a position": (with_stream(start={0: True}), ["streams[0].start", "{0: true}", "earliest"]),
    "two positions of a partition": (with_stream(start={0: 5, "0": 7}), ["streams[0].start", "name each partition"]),
    "an invalid log level": (
        with_section(logs={"level": "loud"}),
        ["logs.level", "'loud'", "debug, info, warning, error"],
    ),
    "an invalid address": (
        with_section(writer={"http": "localhost"}),
        ["writer.http", "'localhost'", "127.0.0.1:8080"],
    ),
    "no streams": (with_section(streams=[]), ["streams", "is empty"]),
    "no brokers": (with_section(kafka={"client.id": "x"}), ["kafka has no bootstrap.servers", "localhost:9092"]),
    "no method for OAuth tokens": (
        with_kafka("sasl.mechanism", "OAUTHBEARER"),
        ["kafka has sasl.mechanism OAUTHBEARER", "sasl.oauthbearer.method: oidc"],
    ),
    "records of aborted transactions": (
        with_kafka("isolation.level", "read_uncommitted"),
        ["kafka sets an isolation.level", "aborted transactions", "remove it"],
    ),
    "a property that is a map": (with_kafka("x", {"y": 1}), ["kafka.x", "not a single value"]),
    **{
        f"{key}, which the program sets": (with_kafka(key, "x"), [key, instead])
        for key, instead in (
            ("group.id", "writer.group_id"),
            ("enable.auto.commit", "writer.report_positions"),
            ("enable.auto.offset.store", "writer.report_positions"),
            ("auto.offset.reset", "streams[].start"),
        )
    },
    "topics that are text": (with_stream(topics="orders"), ["streams[0].topics", "'orders'", "[orders]"]),
    "a list that is one text": (
        with_stream(include="key"),
        ["streams[0].include (orders): 'key' is not a list; write [key]"],
    ),
    "no topics": (with_stream(topics=[]), ["streams[0].topics", "is empty"]),
    "an invalid topic name": (with_stream(topics=["or ders"]), ["streams[0].topics", "'or ders'", "letters"]),
    "an invalid regular expression": (with_stream(topics=["^a("]), ["streams[0].topics", "'^a('", "fix"]),
    "an expression and a name": (with_stream(topics=["^a", "b"]), ["streams[0].topics", "mixes"]),
    "an invalid start": (with_stream(start="yesterday"), ["streams[0].start", "'yesterday'", "earliest"]),
    "a start below zero": (with_stream(start={0: -5}), ["streams[0].start", "{0: -5}", "earliest"]),
    "invalid columns": (with_stream(columns="id NUMBER(3"), ["streams[0].columns", "NUMBER", "NUMERIC"]),
    "uniform": (with_stream(uniform=["iceberg"]), ["uniform", "delta-iceberg", "remove uniform"]),
    "an unknown uniform format": (with_stream(uniform=["hudi"]), ["uniform", "iceberg"]),
    "an unknown load mode": (with_stream(load="copy"), ["load", "append"]),
    "sorted by a column twice": (
        with_stream(table_services={"z_order": ["id", "id"]}),
        ["table_services.z_order has a column twice"],
    ),
    "partitioned by a column twice": (
        with_stream(partition_by=["city", "city"]),
        ["partition_by has a column twice"],
    ),
    "a property that only Delta writes": (
        with_stream(table_properties={"io.unitycatalog.tableId": "1"}),
        ["table_properties sets io.unitycatalog.tableId, which only Delta may write"],
    ),
    "a misspelled word": (
        with_stream(unknown_fields="evolv"),
        ["unknown_fields (orders): 'evolv' is not one of 'ignore', 'rescue' or 'evolve'"],
    ),
    "a field renamed to a column": (
        with_stream(columns="id BIGINT, city STRING", unknown_fields="evolve", rename={"town": "City"}),
        ["rename makes the column 'City', which columns has too"],
    ),
    "a part of a field dropped from growing columns": (
        with_stream(unknown_fields="evolve", drop=["city.zip"]),
        ["drop names 'city.zip', which unknown_fields: evolve needs"],
    ),
    "clustered and partitioned": (
        with_stream(cluster_by=["city"], partition_by=["city"]),
        ["cluster_by and partition_by", "remove one of them"],
    ),
    **{
        f"clustered by {names}": (with_stream(columns=TYPES, cluster_by=names), messages)
        for names, messages in (
            (["flag"], ["cluster_by names 'flag', which has the type BOOLEAN", "text, dates and times"]),
            (["city.name", "city.tags"], ["'city.tags', which has the type ARRAY<STRING>"]),
            (["city.zip"], ["'city.zip', which is not a field of it"]),
            (["id", "id"], ["cluster_by has a column twice"]),
            (["id", "a", "b", "c", "city.name"], ["cluster_by names 5 columns", "up to 4"]),
        )
    },
    **{
        f"{key} by {name}": (
            with_stream(columns="id BIGINT, f FLOAT", include=["key", "headers"], **{key: [name]}),
            [f"{key} names '{name}', which has the type {kind}"],
        )
        for key, name, kind in (
            ("cluster_by", "_kafka_key", "BINARY"),
            ("cluster_by", "_kafka_headers", "ARRAY"),
            ("partition_by", "_kafka_key", "BINARY"),
            ("partition_by", "_kafka_headers", "ARRAY"),
            ("partition_by", "f", "FLOAT"),
        )
    },
    "a missing clustering column": (with_stream(cluster_by=["cty"]), ["cluster_by", "'cty'", "'city'"]),
    "a property that Delta sets": (
        with_stream(table_properties={"delta.columnMapping.maxColumnId": "7"}),
        ["delta.columnMapping.maxColumnId", "remove it"],
    ),
    "a table like itself": (with_stream(template="/data/orders/"), ["template", "name another one"]),
    "a missing partition column": (with_stream(partition_by=["cty"]), ["'cty'", "'city'"]),
    "a derived column that exists already": (with_stream(derive={"City": "1"}), ["'City'", "rename"]),
    "dead letters in the table": (with_stream(dead_letters="/data/orders/"), ["dead_letters", "URL of its own"]),
    "empty dead letters": (with_stream(dead_letters=""), ["streams[0].dead_letters", "is empty"]),
    "two streams of one name": (another_stream(topics=["x"], table="/x"), ["'orders'", "each its own"]),
    "two streams on one topic and one table": (another_stream(app_id="x"), ["'orders'", "both load", "another table"]),
    "two streams on one topic, one with an invalid folder name": (
        another_stream(app_id="x y", table="/x"),
        ["'x y'", "letters, digits", "stage.url"],
    ),
    "two streams whose progress could be mixed up": (
        another_stream(app_id="orders-eu", topics=["x"]),
        ["'orders-eu'", "txn actions"],
    ),
    "a table for another's dead letters": (
        another_stream(app_id="x", topics=["x"], table="/data/orders_dead_letters"),
        ["dead letters of 'orders'", "URL"],
    ),
    "routes without a route expression": (with_stream(routes={"a": "/a"}), ["route is missing", "add route"]),
    "a route expression without routes": (with_stream(route="city"), ["routes name no table", "{value: table URL}"]),
    "a route for each value": (
        with_stream(route="city", routes="/data/{route}"),
        ["streams[0].routes", "route_table: URL with {route}", "a line for each value"],
    ),
    "a route with a template": (
        with_stream(route="city", routes={"a": "/data/{route}"}),
        ["routes.a", "'/data/{route}'", "routes have a table for each value"],
    ),
    "a route without a table": (with_stream(route="city", routes={"a": " "}), ["routes.a", "write the URL alone"]),
    "a route into the dead letters": (
        with_stream(route="city", routes={"a": "file:///data/orders_dead_letters/"}),
        ["routes.a", "dead_letters", "unrouted: dead_letters"],
    ),
    "an invalid place for unrouted records": (
        with_stream(route="city", routes={"a": "/a"}, unrouted="nowhere"),
        ["unrouted", "'nowhere'", "table, dead_letters"],
    ),
    "a place for unrouted records without a route": (with_stream(unrouted="dead_letters"), ["unrouted", "add route"]),
    "a route into another's dead letters": (
        another_stream(app_id="x", topics=["x"], table="/x", route="city", routes={"a": "/data/orders_dead_letters"}),
        ["a route of stream 'x'", "dead letters of 'orders'"],
    ),
    "two streams whose progress could be mixed up in a route's table": (
        another_stream(app_id="orders-eu", topics=["x"], table="/x", route="city", routes={"a": "/data/orders"}),
        ["'orders-eu'", "txn actions"],
    ),
    "two streams whose progress could be mixed up in a dead-letter table": (
        another_stream(app_id="orders-eu", topics=["x"], table="/x", dead_letters="/data/orders_dead_letters"),
        ["'orders-eu'", "txn actions"],
    ),
    "a variable that is not set": (with_section(stage={"url": "${KDE_NOT_SET}/x"}), ["KDE_NOT_SET", "export"]),
    "a variable with a default, as in a shell": (
        with_section(stage={"url": "${KDE_NOT_SET:-/data}/x"}),
        ["KDE_NOT_SET:-/data is not set", "→ write the name alone"],
    ),
    "a word of YAML in place of a number": (
        with_section(writer={"flush_records": True}),
        ["writer.flush_records: true is not a whole number"],
    ),
    "an app_id that leads out of its folder": (with_stream(app_id=".."), ["streams[0].app_id"]),
    "an app_id of spaces": (with_stream(app_id="  "), ["streams[0].app_id"]),
    "an app_id that is too long for a file's name": (
        with_stream(app_id="é" * 42),
        ["streams[0].app_id", "at most 250"],
    ),
    "a reference without a name": (with_section(stage={"url": "${}/x"}), ["stage.url: a ${ names nothing", "${NAME}"]),
    "a reference that is not closed": (
        with_section(stage={"url": "/data/${KDE"}),
        ["stage.url", "${ is not closed", "$${"],
    ),
    "an app_id of two lines": (with_stream(app_id="a\nb"), ["streams[0].app_id"]),
    "a topic that leads out of its folder": (with_stream(topics=[".."]), ["streams[0].topics"]),
    "a topic with a folder": (with_stream(topics=["a/b"]), ["streams[0].topics"]),
    "frames without a registry": (with_stream(framing="confluent"), ["schema_registry.url is missing"]),
    "a derived column that events add": (with_stream(envelope="debezium", derive={"_CDC": "1"}), ["'_CDC'"]),
    "a missing file": (
        with_section(kafka={"bootstrap.servers": "${file:/not/there}"}),
        ["/not/there", "bootstrap.servers"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG)
def test_invalid_config_gives_one_readable_error(
    text: str, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text, encoding="utf-8")
    assert run(app, ["show", str(config)]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.count("error:") == 1
    assert str(config) in captured.err
    assert "→" in captured.err
    for words in expected:
        assert words in captured.err


def test_all_config_errors_are_reported_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(with_section(writer={"flush_after": "x", "flush_byte": 1}, loader={"schedule": "y"}))
    assert run(app, ["show", str(config)]) == 2
    error = capfd.readouterr().err
    assert "3 settings are wrong" in error
    assert all(key in error for key in ("writer.flush_after", "writer.flush_byte", "loader.schedule"))


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_unreadable_file_is_a_config_error(
    content: bytes | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    if content is not None:
        config.write_bytes(content)
    assert run(app, ["show", str(config)]) == 2
    error = capfd.readouterr().err
    assert str(config) in error
    assert "Traceback" not in error


def test_load_settings_reads_the_process_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDE_TEST_URL", "/from/environment")
    config = tmp_path / "config.yaml"
    config.write_text(with_section(stage={"url": "${KDE_TEST_URL}"}))
    assert load_settings(config, os.environ).stage.url == "/from/environment"


@pytest.mark.parametrize(
    ("stage", "stream", "message"),
    [
        ("/data/orders/stage", {}, "stage.url, /data/orders/stage, lies below streams[].table"),
        ("s3a://lake/orders/s", {"table": "s3://lake/orders"}, "VACUUM of that table"),
        ("/s", {"dead_letters": "/data/orders/dead"}, "streams[].dead_letters, /data/orders/dead, lies below"),
        ("file:///data/orders/", {}, "a place of its own"),
        (
            "/data",
            {"table": "/data/data/orders"},
            "streams[].table, /data/data/orders, lies in the folder data of the stage",
        ),
        ("s3://lake", {"dead_letters": "s3a://lake/done/orders/"}, "lies in the folder done of the stage"),
        ("/s", {"route": "city", "route_table": "/data/orders/in-{route}"}, "streams[].route_table, /data/orders/in-"),
    ],
)
def test_overlapping_stage_and_table_folders_are_refused(stage: str, stream: dict[str, object], message: str) -> None:
    content = yaml.safe_load(with_stream(**stream))
    content["stage"] = {"url": stage}
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(yaml.safe_dump(content))


def test_table_may_lie_below_the_stage_and_share_a_name_prefix() -> None:
    content = yaml.safe_load(with_stream(table="/data/orders", dead_letters="/data/orders_dead"))
    content["stage"] = {"url": "/data"}
    assert parse(yaml.safe_dump(content)).stage.url == "/data"


def test_stage_folders_constant_lists_every_folder() -> None:
    of_chains = {DONE, STRAY, STAGED, IDLE, STATE, OUTBOX, BEGIN, REPAIR, LOADING, REPLACE, ACCEPT}
    kept = of_chains | {SCHEMA, COLUMNS, ROUTES, FAILURES, NOTIFICATIONS, SENT}
    modules = [import_module(f"common.stage.{module.name}") for module in iter_modules(common.stage.__path__)]
    named = {
        str(getattr(module, name)) for module in modules for name in re.findall(r'f"\{([A-Z_]+)\}/', getsource(module))
    }
    assert kept | {name for name in named if name.isalpha()} | {PROBES, "lease"} == STAGE_FOLDERS


# Connections and message envelopes.


def test_registry_password_is_not_printed() -> None:
    registry = {"url": "http://me:hush@localhost:8081", "basic.auth.user.info": "me:hush"}
    assert "hush" not in print_settings(parse(with_section(schema_registry=registry)))


def test_event_envelope_adds_a_column() -> None:
    (stream,) = parse(with_stream(envelope="debezium", where="_cdc.op <> 'd'", drop=["_cdc"])).streams
    assert stream.record.has_events


def test_checking_twice_the_streams_takes_twice_the_work() -> None:
    """A thousand streams once took 20 CPU-seconds at each start and for each `delta-loader status`."""

    def calls_for(count: int) -> int:
        content = content_of(*({"app_id": f"a{n}", "topics": [f"t{n}"], "table": f"/lake/{n}"} for n in range(count)))
        calls = 0

        def counted(*_: object) -> None:
            nonlocal calls
            calls += 1

        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            Settings.model_validate(content)
        finally:
            sys.setprofile(before)
        return calls

    calls_for(1)  # fills caches
    assert calls_for(80) < 2.2 * calls_for(40)
