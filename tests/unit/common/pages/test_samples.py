"""The status page shows only the shape of a dead letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.pages.samples import Samples, masked


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"id": 17, "name": "Ada", "at": "2026-03-01"}', '{"id": 99, "name": "xxx", "at": "9999-99-99"}'),
        (b'{"a": {"b": [true, null]}}', '{"a": {"b": [xxxx, xxxx]}}'),
        ('{"名": "北京"}'.encode(), '{"x": "xx"}'),
        (b"not json: secret", "xxx xxxx: xxxxxx"),
        (b'{"text": "{\\"card\\": 4111}"}', '{"text": "{\\"xxxx\\": 9999}"}'),
        (b'{"a": "x, \\"b\\": 1"', '{"a": "x, \\"x\\": 9"'),
        (b"\xff\x00", "xx"),
        (b"", ""),
    ],
)
def test_field_names_stay_and_values_are_masked(value: bytes, shown: str) -> None:
    assert masked(value) == shown


@given(st.text(st.characters(exclude_characters='"')))
def test_masked_text_keeps_only_punctuation(text: str) -> None:
    assert set(masked(text.encode("utf-8", "replace"))) <= set('x9… \n\t{}[]":,.+-\\')


def test_long_value_is_truncated() -> None:
    assert len(masked(b"[" + b"1, " * 100_000)) <= 201


def test_newest_samples_of_each_class_are_kept() -> None:
    samples = Samples(2)
    samples.add("orders", [("wrong_type", f"orders/0 @ {number}", b"{}") for number in range(5)])
    samples.add("orders", [("empty", "orders/0 @ 9", None)])
    assert [sample.place for sample in samples.of("orders", "wrong_type")] == ["orders/0 @ 4", "orders/0 @ 3"]
    assert [sample.text for sample in samples.of("orders", "empty")] == [""]
    assert samples.of("other", "empty") == ()
