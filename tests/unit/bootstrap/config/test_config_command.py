"""`config init|schema|show` without a broker: the inferred, written and described config."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from bootstrap.__main__ import app
from bootstrap.config.draft import Answers, Draft, draft
from bootstrap.config.sample import sampled
from common.cli import run
from common.reference import EXAMPLE
from common.schema import to_ddl
from common.settings import Settings, Stream
from common.settings.json_schema import settings_schema
from common.settings.load import parse_settings
from common.settings.values import LoadSetting
from tests.builders import required

ANSWERS = Answers({"bootstrap.servers": "localhost:9092"}, "s3://lake/stage", "s3://lake/tables")


def messages(*records: object) -> list[tuple[bytes | None, bytes | None]]:
    return [(None if record is None else json.dumps(record).encode(), None) for record in records]


def drafted(*records: object, answers: Answers = ANSWERS) -> tuple[Draft, Stream]:
    draft_made = draft(answers, [sampled("shop.orders", 4, messages(*records))])
    return draft_made, parse_settings(draft_made.text, {"KAFKA_SASL_PASSWORD": "x"}, "draft").streams[0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2**63 - 1), "BIGINT"),
        ((1, 2**63), "DECIMAL(38,0)"),
        ((1, 1.5), "DOUBLE"),
        ((True, False), "BOOLEAN"),
        (("a", None), "STRING"),
        (("2026-03-31", "2026-04-01"), "DATE"),
        (("2026-03-31", "2026-02-30"), "STRING"),
        (("2026-03-31T03:17:37.260514+00:00", "2026-03-31 03:17:37"), "TIMESTAMP"),
        (("2026-03-31T03:17:37", "2026-03-31T03:17:38.5"), "TIMESTAMP_NTZ"),
        (("2026-03-31T03:17:37.1234567Z",), "STRING"),
        (("2026-03-31T03:17:37Z", "soon"), "STRING"),
        (("2026-03-31T03:17:37+23:59", "2026-03-31T03:17:37-2359"), "TIMESTAMP"),
        (("2026-03-31T03:17:37Z", "2026-03-31T03:17:37+24:00"), "STRING"),
        (("2026-03-31T03:17:37Z", "2026-03-31T03:17:37+05:60"), "STRING"),
        (([1], [2, None], []), "ARRAY<BIGINT>"),
        (([],), "ARRAY<STRING>"),
        (({"a": 1}, {"b": {"c": [True]}}), "STRUCT<a: BIGINT, b: STRUCT<c: ARRAY<BOOLEAN>>>"),
        (({},), "MAP<STRING, STRING>"),
        (({"17": 1, "18": 2}, {"19": 3}), "MAP<STRING, BIGINT>"),
        (({"17": {"a": {"b": 1}}, "18": {"a": {"c": 2}}},), "MAP<STRING, STRUCT<a: STRUCT<b: BIGINT, c: BIGINT>>>"),
        (tuple({f"key{index}": "x"} for index in range(40)), "MAP<STRING, STRING>"),
        ((1, "a"), "STRING"),
        ((None,), "STRING"),
    ],
)
def test_inferred_type_covers_only_the_sampled_values(values: tuple[object, ...], expected: str) -> None:
    _, stream = drafted(*({"id": 1, "value": value} for value in values))
    assert to_ddl(stream.record.schema_of_columns) == f"id BIGINT, value {expected}"


@pytest.mark.parametrize(
    ("values", "formats"),
    [
        ((1, "a"), {"value": "json"}),
        ((None,), {"value": "json"}),
        (({"a": [1, {}]},), {"value.a.element": "json"}),
        (({"17": 1, "18": "x"}, {"17": {}}), {"value.17": "json"}),
        (({"1": [1, "x"]}, {"2": []}), {"value.value.element": "json"}),
        (({},), {"value.value": "json"}),
    ],
)
def test_values_of_mixed_types_are_kept_as_json_text(values: tuple[object, ...], formats: dict[str, str]) -> None:
    _, stream = drafted(*({"id": 1, "value": value} for value in values))
    assert {key.replace("`", ""): value.value for key, value in stream.record.formats.items()} == formats


@pytest.mark.parametrize(
    ("usual", "odd", "expected", "counted", "alternative"),
    [
        (7, 1.5, "BIGINT", "1 × number", "value DOUBLE would accept all"),
        (7, "x", "BIGINT", "1 × text", "value STRING, with formats: {value: json} would accept all"),
        ("2026-03-31T03:17:37Z", "soon", "TIMESTAMP", "1 × text", "value STRING would accept all"),
        ("2026-03-31", "2026-02-30", "DATE", "1 × text", "value STRING would accept all"),
        ("x", {"a": 1}, "STRING", "1 × object", "value STRING, with formats: {value: json} would accept all"),
        ({"a": 1}, [1], "STRUCT<a: BIGINT>", "1 × array", "value STRING, with formats: {value: json} would accept all"),
        (True, None, "BOOLEAN", None, None),
        (1.5, 7, "DOUBLE", None, None),
    ],
)
def test_one_odd_value_in_a_thousand_is_reported_and_changes_no_type(
    usual: object, odd: object, expected: str, counted: str | None, alternative: str | None
) -> None:
    drafted_config, stream = drafted(*({"value": usual} for _ in range(999)), {"value": odd})
    assert to_ddl(stream.record.schema_of_columns) == f"value {expected}"
    assert stream.record.formats == {}
    assert ("would be dead letters" in drafted_config.text) == (counted is not None)
    for text in (counted, alternative):
        assert text is None or f"{text}" in drafted_config.text
    assert "was always" not in drafted_config.text


@pytest.mark.parametrize(("value", "expected"), [("2026-03-31T03:17:37Z", "a timestamp"), ("2026-03-31", "a date")])
def test_times_in_every_record_are_noted(value: str, expected: str) -> None:
    assert f"value was always {expected} as text" in drafted({"value": value}, {"value": value})[0].text


def test_prompts_ask_again_after_an_invalid_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sample = sampled("orders", 4, messages({"id": 1}))
    monkeypatch.setattr("bootstrap.config.commands.is_interactive", lambda: True)
    monkeypatch.setattr("bootstrap.config.commands.topics_of", lambda _: {"orders": 4, "returns": 1})
    monkeypatch.setattr("bootstrap.config.commands.sample_of", lambda *_: sample)
    answers = ["localhost:9092", "returned", ",", "1", "lake/stage", "/lake/stage", "s3:/lake", "/lake/tables"]
    file = tmp_path / "pipeline.yaml"
    result = CliRunner().invoke(app, ["config", "init", str(file)], input="".join(f"{line}\n" for line in answers))
    assert result.exit_code == 0, result.output
    refusals = (
        "Kafka has no topic 'returned'",
        "at least one topic",
        "'lake/stage' is a relative",
        "'s3:/lake' is not",
    )
    assert all(text in result.output for text in refusals)
    assert "topics: [orders]" in file.read_text("utf-8")


def test_two_odd_values_in_a_hundred_change_the_type() -> None:
    _, stream = drafted(*({"value": 7} for _ in range(98)), {"value": "x"}, {"value": "y"})
    assert to_ddl(stream.record.schema_of_columns) == "value STRING"


@pytest.mark.parametrize("option", ["--stage-url", "--tables-url"])
def test_init_refuses_an_invalid_url(option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    urls = {"--stage-url": "/lake/stage", "--tables-url": "/lake/tables", option: "s3:/lake/x"}
    arguments = [word for pair in urls.items() for word in pair]
    file = str(tmp_path / "pipeline.yaml")
    assert run(app, ["config", "init", file, "--bootstrap-servers", "127.0.0.1:1", "--topic", "t", *arguments]) == 2
    assert f"{option}: 's3:/lake/x' is not a URL" in capfd.readouterr().err


def test_draft_names_its_schema_for_editors() -> None:
    drafted_config, _ = drafted({"id": 1})
    assert drafted_config.text.startswith("# yaml-language-server: $schema=config.schema.json\n")


def test_invalid_column_names_are_reported_and_left_out() -> None:
    drafted_config, stream = drafted({"id": 1, "ID": 2, "a b": 3, "": 4, "${HOME}": 5, "\u2028": 8, "`": 6, "x.y": 7})
    assert stream.record.schema_of_columns.names == ("id", "`", "x.y")
    assert "differs from id only in case" in drafted_config.text
    assert "without column mapping" in drafted_config.text


def test_epochs_and_rare_fields_are_noted_as_comments() -> None:
    drafted_config, stream = drafted({"id": 1, "sent": 1_774_927_057_260}, {"id": 2})
    assert stream.record.formats == {}
    assert "sent looks like an epoch: TIMESTAMP with formats: {sent: epoch_ms}" in drafted_config.text
    assert "sent is in 1 of 2 records" in drafted_config.text


@pytest.mark.parametrize(
    ("record", "derive", "partition_by"),
    [
        ({"id": 1}, {"date": "CAST(kafka.timestamp AS DATE)"}, ("date",)),
        ({"at": "2026-03-31T00:00:00Z"}, {"date": 'CAST("at" AS DATE)'}, ("date",)),
        (
            {"seen": "2026-03-31T00:00:00Z", "meta": {"event_time": "2026-03-31T00:00:00Z"}},
            {"date": 'CAST("meta"."event_time" AS DATE)'},
            ("date",),
        ),
        ({"day": "2026-03-31"}, {}, ("day",)),
        ({"date": 5}, {"event_date": "CAST(kafka.timestamp AS DATE)"}, ("event_date",)),
    ],
)
def test_table_is_partitioned_by_a_day_that_each_record_has(
    record: object, derive: dict[str, str], partition_by: tuple[str, ...]
) -> None:
    _, stream = drafted(record)
    assert (stream.shaping.derive, stream.layout.partition_by) == (derive, partition_by)


MAXWELL: dict[str, object] = {"database": "shop", "table": "orders", "ts": 1449786341, "xid": 1}
CANAL: dict[str, object] = {"database": "shop", "table": "orders", "ts": 1589373560798, "isDdl": False, "old": None}


@pytest.mark.parametrize(
    ("envelope", "columns", "messages"),
    [
        (
            "maxwell",
            "id BIGINT, city STRING",
            [
                {**MAXWELL, "type": "bootstrap-start", "data": {}},
                {**MAXWELL, "type": "insert", "data": {"id": 1, "city": "Ulm"}},
                {"database": "shop", "table": "orders", "type": "table-alter", "def": {}, "ts": 1449786341000},
            ],
        ),
        (
            "canal",
            "id STRING, city STRING",
            [
                {**CANAL, "type": "INSERT", "data": [{"id": "1", "city": "Ulm"}, {"id": "2", "city": "Bonn"}]},
                {**CANAL, "type": "ALTER", "isDdl": True, "data": None},
            ],
        ),
        (
            "dms",
            "id BIGINT, city STRING",
            [
                {"metadata": {"record-type": "control", "operation": "create-table"}},
                {"metadata": {"record-type": "data", "operation": "load"}, "data": {"id": 1, "city": "Ulm"}},
            ],
        ),
        ("plain", None, [{**MAXWELL, "type": "insert", "data": {}}, {"metadata": {"record-type": "data"}, "data": {}}]),
        ("plain", None, [{"type": "click", "data": {"id": 1}}]),
    ],
)
def test_envelope_of_change_events_is_recognized(
    envelope: str, columns: str | None, messages: list[dict[str, object]]
) -> None:
    drafted_config = draft(
        ANSWERS, [sampled("orders", 1, [(json.dumps(message).encode(), None) for message in messages])]
    )
    stream = parse_settings(drafted_config.text, {}, "draft").streams[0]
    assert stream.record.envelope == envelope
    if columns is not None:
        assert to_ddl(stream.record.schema_of_columns) == columns


def test_frames_and_change_events_are_recognized() -> None:
    event = {"op": "u", "source": {}, "before": {"id": 1}, "after": {"id": 1, "city": "Köln"}}
    frame, key = b"\x00\x00\x00\x00\x07", json.dumps({"payload": {"id": 1}, "schema": {}}).encode()
    values = [(frame + json.dumps({"payload": event}).encode(), frame + key), (None, frame + key)]
    drafted_config = draft(ANSWERS, [sampled("orders", 1, values)])
    stream = parse_settings(drafted_config.text, {}, "draft").streams[0]
    assert (stream.record.framing, stream.record.envelope) == ("confluent", "debezium")
    assert to_ddl(stream.record.schema_of_columns) == "id BIGINT, city STRING"
    assert any("schema_registry.url" in line for line in drafted_config.notes)
    merged = drafted_config.text.replace("  # load: merge", "  load: merge").replace("  # merge: {", "  merge: {")
    stream = parse_settings(merged, {}, "draft").streams[0]
    assert (stream.load, required(stream.merge).keys) == (LoadSetting.MERGE, ("id",))


def test_framed_messages_that_are_not_json_are_noted_as_another_format() -> None:
    frame = b"\x00\x00\x00\x00\x07"
    drafted_config = draft(ANSWERS, [sampled("orders", 1, [(frame + b'{"id": 1}', None), (frame + b"\x02\x04", None)])])
    assert any(
        "1 of 2 messages are not JSON objects; where they are Avro or Protobuf" in line for line in drafted_config.notes
    )


def test_values_and_secrets_are_not_written() -> None:
    answers = Answers(
        {"bootstrap.servers": "b:9092", "sasl.password": "hunter2", "sasl.username": "${USER}"}, "/stage", "/tables"
    )
    drafted_config = draft(
        answers, [sampled("orders", 1, [*messages({"id": 4711, "name": "Ada"}), (b"{", None), (None, None)])]
    )
    assert "hunter2" not in drafted_config.text
    assert yaml.safe_load(drafted_config.text)["kafka"]["sasl.password"] == "${KAFKA_SASL_PASSWORD}"
    assert "4711" not in drafted_config.text
    assert "Ada" not in drafted_config.text
    assert any("KAFKA_SASL_PASSWORD" in line for line in drafted_config.notes)
    assert any("1 of 3 messages are not JSON objects" in line for line in drafted_config.notes)


def test_init_without_a_terminal_needs_its_options_and_a_new_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.yaml"
    assert run(app, ["config", "init", str(file)]) == 2
    assert capfd.readouterr().err.startswith("error: --bootstrap-servers is missing")
    file.write_text("")
    assert run(app, ["config", "init", str(file)]) == 2
    assert "already exists" in capfd.readouterr().err


VALIDATOR = jsonschema.Draft202012Validator(settings_schema())


def refused(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]


def loads(text: str, environ: dict[str, str] | None = None) -> Settings:
    return parse_settings(text, environ or {}, "test")


def test_schema_accepts_valid_configs() -> None:
    jsonschema.Draft202012Validator.check_schema(settings_schema())
    plain = (
        "kafka: {bootstrap.servers: b}\nstage: {url: /s}\nstreams: [{app_id: a, topics: [a], table: /t, columns: a INT"
    )
    texts = [
        EXAMPLE,
        plain + "}]",
        plain + ", start: {0: 120}}]\nwriter: {flush_after: 500ms, memory: 1.5GiB, workers: auto, http: null}",
        plain + ", kafka_columns: false}]\nwriter: {flush_records: '${N}', flush_after: 5, flush_bytes: 1000000}",
        plain + ", unknown_fields: rescue}]\nloader: {schedule: '*/15 * * * *', lease: 0s}",
    ]
    for text in texts:
        assert refused(text) == []
        loads(text, {"N": "10"})


@pytest.mark.parametrize(
    "lines",
    [
        "writer: {flush_afer: 60s}",
        "writer: {flush_after: 60 parsecs}",
        "writer: {flush_bytes: 10ZB}",
        "writer: {flush_records: many}",
        "writer: {workers: 0}",
        "logs: {level: loud}",
        "streams: []",
        "streams: [{app_id: a, topics: [a], columns: a INT}]",
        "streams: [{app_id: a, topics: [a], table: /t, columns: a INT, unknown_fields: keep}]",
    ],
)
def test_schema_refuses_invalid_configs(lines: str) -> None:
    text = yaml.safe_dump({**yaml.safe_load(EXAMPLE), **yaml.safe_load(lines)})
    assert refused(text)
    with pytest.raises(Exception, match="test: "):
        loads(text)


def test_schema_has_the_defaults_and_descriptions_of_the_settings() -> None:
    writer = settings_schema()["$defs"]["WriterSettings"]["properties"]  # type: ignore[index]
    assert writer["flush_after"]["default"] == "1m"
    assert writer["memory"]["default"] == "1GiB"
    assert writer["group_id"]["description"].startswith("Kafka consumer group.")


def test_show_masks_secrets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(EXAMPLE.replace("options: {}", "options: {secret: s3cr3t}"))
    assert run(app, ["config", "show", str(file), "--json"]) == 0
    shown = capfd.readouterr().out
    assert json.loads(shown)["writer"]["flush_after"] == "1m"
    assert "s3cr3t" not in shown
