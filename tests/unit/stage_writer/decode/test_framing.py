"""Frames are removed, only for ids with a JSON Schema; the registry is queried once for each id."""

import threading
import time
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from common.errors import ConfigError, RegistryError
from common.schema import parse_ddl
from devservices.schema_registry import Registry, running_registry
from stage_writer.decode.decode import Decoder
from stage_writer.decode.envelopes.framing import FramedDecoder, RegisteredSchema, SchemaWait
from stage_writer.decode.rejects import ErrorClass
from stage_writer.layers import PlainRecords
from tests.builders import instance
from tests.fakes.answering import schema_registry
from tests.fakes.clock import IdleClock
from tests.unit.stage_writer.decode.test_debezium import messages_of


class Types:
    """A registry with four schemas, which records its queries."""

    def __init__(self) -> None:
        self.asked: list[list[int | str]] = []

    def types_of(self, ids: Sequence[int | str]) -> Mapping[int | str, str | None]:
        self.asked.append(list(ids))
        known: dict[int | str, str] = {7: "JSON", 8: "AVRO", 2**32 - 1: "JSON", 9: "PROTOBUF"}
        return {each: known.get(each) for each in ids}

    def knows(self, ids: Sequence[int | str]) -> bool:
        return 666 not in ids

    def schema_of(self, schema: int | str) -> RegisteredSchema:
        raise NotImplementedError

    def missing(self, ids: Sequence[int | str]) -> RegistryError:
        return RegistryError(f"unknown schemas {ids}", "")


def framed(schema: int, body: bytes) -> bytes:
    return b"\0" + schema.to_bytes(4) + body


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_only_messages_framed_as_json_are_decoded(kind: pa.DataType) -> None:
    types = Types()
    decoder = FramedDecoder(PlainRecords(Decoder(parse_ddl("i INT"))), types)
    values = [
        b"sliced off",
        framed(7, b'{"i":0}'),
        None,
        b'{"i":1}',
        framed(8, b"\x02"),
        framed(5, b'{"i":2}'),
        framed(2**32 - 1, b'{"i":3}'),
        b"",
        b"\0\0\0\0",
        framed(7, b""),
        framed(9, b""),
        framed(7, b'{"i":"4"}'),
    ]
    decoded = decoder.decode(messages_of(pa.array(values, kind).slice(1)))
    assert decoded.rows["i"].to_pylist() == [0, 3]
    assert decoded.row_index.tolist() == [0, 5]
    assert decoded.tombstones.tolist() == [1]
    assert [(reject.index, reject.error_class) for reject in decoded.rejects] == [
        (2, ErrorClass.NOT_FRAMED),
        (3, ErrorClass.WRONG_SCHEMA),
        (4, ErrorClass.UNKNOWN_SCHEMA),
        (6, ErrorClass.NOT_FRAMED),
        (7, ErrorClass.NOT_FRAMED),
        (8, ErrorClass.EMPTY),
        (9, ErrorClass.WRONG_SCHEMA),
        (10, ErrorClass.WRONG_TYPE),
    ]
    assert "schema 8 is AVRO" in decoded.rejects[1].error
    assert types.asked == [[5, 7, 8, 9, 2**32 - 1]]


def test_messages_wait_only_for_the_schemas_they_name() -> None:
    decoder = FramedDecoder(PlainRecords(Decoder(parse_ddl("i INT"))), Types())
    assert decoder.waits(pa.array([framed(7, b"{}"), None, b"no frame", b""])) is None
    assert decoder.waits(pa.array([None, b""], pa.binary())) is None
    wait = instance(SchemaWait, decoder.waits(pa.array([framed(7, b"{}"), framed(666, b"{}"), framed(666, b"{}")])))
    assert (wait.ids, wait.is_over()) == ((7, 666), False)


def test_registry_is_not_queried_without_framed_messages() -> None:
    types = Types()
    decoder = FramedDecoder(PlainRecords(Decoder(parse_ddl("i INT"))), types)
    assert decoder.decode(messages_of(pa.array([None, None], pa.binary()))).tombstones.tolist() == [0, 1]
    assert decoder.decode(messages_of(pa.array([], pa.binary()))).rows.num_rows == 0
    assert types.asked == []


def test_registry_types_are_queried_once() -> None:
    with running_registry("reader:secret") as server:
        ids = [server.register("{}"), server.register('"string"', "AVRO"), server.register("syntax", "PROTOBUF")]
        registry = schema_registry(server.url, settings={"basic.auth.user.info": "reader:secret"})
        registry.check()
        assert registry.types_of([*ids, 99]) == dict(zip([*ids, 99], ["JSON", "AVRO", "PROTOBUF", None], strict=True))
        before = len(server.requests)
        assert registry.types_of([*ids, 99])[99] is None
        assert len(server.requests) == before


def test_missing_schema_is_found_a_minute_later() -> None:
    with running_registry() as server:
        clock = IdleClock()
        registry = schema_registry(server.url, clock)
        assert registry.types_of([1]) == {1: None}
        server.register("{}")
        assert (registry.knows([1]), registry.types_of([1])) == (True, {1: None})
        clock.sleep_s(61)
        assert (registry.knows([1]), registry.types_of([1])) == (True, {1: "JSON"})


def test_missing_schemas_are_queried_once_and_forgotten() -> None:
    with running_registry() as server:
        clock = IdleClock()
        registry = schema_registry(server.url, clock)
        server.register("{}")
        garbage = range(1_000_000, 1_000_100)
        assert registry.types_of([*garbage, 1]) == {**dict.fromkeys(garbage), 1: "JSON"}
        assert (len(server.requests), clock.monotonic_s()) == (101, 0)
        assert registry.types_of([7]) == {7: None}
        assert (len(server.requests), clock.monotonic_s()) == (105, 1.5), (
            "the schema may have been registered a moment ago"
        )
        clock.sleep_s(121)
        registry.types_of([8])
        assert set(registry._schemas) == {1, 8}


def test_first_response_ends_the_wait_for_a_missing_schema() -> None:
    class AskedAgain(IdleClock):
        def __init__(self) -> None:
            super().__init__()
            self.resumed = threading.Event()

        def sleep_s(self, seconds: float) -> None:
            self.resumed.wait(120)
            super().sleep_s(seconds)

    class Answered(threading.Event):
        waited: bool | None = None

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waited = super().wait(120)
            return self.waited

    with running_registry() as server:
        clock, answered = AskedAgain(), Answered()
        registry = schema_registry(server.url, clock)
        registry._answered = answered
        assert not registry.knows([7])
        assert (answered.waited, len(server.requests)) == (True, 1), "the loop continues, and the thread queries again"
        clock.resumed.set()
        assert registry.types_of([7]) == {7: None}


class PatientClock(IdleClock):
    """The registry returns in the third pause."""

    def __init__(self, server: Registry) -> None:
        super().__init__()
        self.server = server
        self.pauses: list[float] = []

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        self.pauses.append(seconds)
        if len(self.pauses) == 3:
            self.server.start()


def test_unavailable_registry_is_retried() -> None:
    with running_registry() as server:
        number = server.register("{}")
        server.stop()
        clock = PatientClock(server)
        registry = schema_registry(server.url, clock)
        assert registry.types_of([number]) == {number: "JSON"}
        assert clock.pauses == [0.5, 1.0, 2.0]


def test_unavailable_registry_blocks_no_caller() -> None:
    with running_registry() as server:
        number = server.register("{}")
        server.stop()
        clock = IdleClock()
        registry = schema_registry(server.url, clock)
        assert "has not returned" in registry.missing([number]).problem
        assert not any(registry.knows([number]) for _ in range(50))
        assert clock.monotonic_s() == 0
        assert "does not respond" in registry.missing([number]).problem
        server.start()
        for _ in range(100):
            clock.sleep_s(1)
            if registry.knows([number]):
                break
            time.sleep(0.02)
        assert registry.types_of([number]) == {number: "JSON"}


@pytest.mark.parametrize("user_info", [None, "reader:wrong"])
def test_registry_that_stays_unavailable_or_refuses_is_an_error(user_info: str | None) -> None:
    with running_registry(user_info and "reader:secret") as server:
        if user_info is None:
            server.stop()
        registry = schema_registry(server.url, settings={"basic.auth.user.info": user_info} if user_info else {})
        with pytest.raises(RegistryError) as raised:
            registry.check()
        assert server.url in raised.value.problem
        with pytest.raises(RegistryError):
            registry.types_of([1])


def test_missing_page_is_not_a_missing_schema() -> None:
    with running_registry() as server:
        number = server.register("{}")
        registry = schema_registry(f"{server.url}/wrong")
        with pytest.raises(RegistryError):
            registry.check()
        with pytest.raises(RegistryError):
            registry.types_of([number])


def test_impossible_schema_id_is_not_requested() -> None:
    with running_registry() as server:
        registry = schema_registry(server.url)
        assert registry.types_of([2**31, 2**32 - 1]) == {2**31: None, 2**32 - 1: None}
        assert server.requests == []


def test_unknown_registry_settings_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        schema_registry("http://localhost:1", settings={"basic.auth": "x"})
    assert "basic.auth" in raised.value.problem
