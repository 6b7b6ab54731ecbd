"""The `formats` of a stream as a user writes them, and which are refused."""

import pytest

from common.errors import ConfigError
from common.settings import Settings
from common.settings.formats import ValueFormat
from common.settings.load import parse_settings

STREAM = """
kafka: {bootstrap.servers: "localhost:9092"}
stage: {url: /data/stage}
streams:
  - {app_id: orders, topics: [orders], table: /data/orders,
     columns: "sent TIMESTAMP,
     meta STRUCT<digest: BINARY, seen: ARRAY<TIMESTAMP>>, `a.b` STRING, g MAP<STRING, STRING>",
     formats: {%s}}
"""


def parse(formats: str) -> Settings:
    return parse_settings(STREAM % formats, {}, "config.yaml")


def test_path_leads_to_a_value_at_any_depth() -> None:
    text = "sent: epoch_ms, meta.digest: hex, meta.seen.element: epoch_s, '`a.b`': json, g.value: json"
    forms = parse(text).streams[0].record.forms
    assert forms.at("sent").format is ValueFormat.EPOCH_MS
    assert forms.at("meta").at("digest").format is ValueFormat.HEX
    assert forms.at("meta").at("seen").at("element").format is ValueFormat.EPOCH_S
    assert forms.at("a.b").format is ValueFormat.JSON
    assert forms.at("g").at("value").format is ValueFormat.JSON
    assert not forms.at("other")


@pytest.mark.parametrize(
    ("formats", "problem"),
    [
        ("sant: epoch_ms", "did you mean 'sent'?"),
        (
            "meta.seen: epoch_ms",
            "epoch_ms is a format of TIMESTAMP or TIMESTAMP_NTZ, and 'meta.seen' is ARRAY<TIMESTAMP>",
        ),
        ("meta.seen.elements: epoch_ms", "did you mean 'element'?"),
        ("meta.digest: json", "'meta.digest' is BINARY; use one of hex, base64"),
        ("sent.x: epoch_s", "it holds no other values"),
        ("sent: epoch", "epoch_s"),
        ("'a..b': json", "not a valid path"),
    ],
)
def test_path_that_does_not_exist_or_fit_its_format_is_refused(formats: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(formats)
    assert problem in raised.value.problem
