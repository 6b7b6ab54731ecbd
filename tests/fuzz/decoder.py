"""The fuzz target: arbitrary bytes as messages of several streams, against the strict decoder of one message at a time.

Each message has to end as the strict decoder says: in its row, exactly, or in the dead letters with its bytes and its
error. The first byte of an input chooses the stream, and `SEPARATOR` ends a message.
"""

from functools import cache

import pyarrow as pa

from common.schema import to_arrow_schema
from common.settings import Stream
from stage_writer.convert import StreamConverter
from stage_writer.decode.decode_options import DecodeOptions
from stage_writer.decode.rejects import Refusal
from stage_writer.decode.strict import Row, StrictDecoder
from stage_writer.decode.unknown.leftovers import Leftovers
from stage_writer.layers import RecordInputs
from stage_writer.parquet.buffer import StagedRows
from tests.fakes.native import native_decoders
from tests.fakes.streams import batch_of, staged_batches, stream_of

Letter = tuple[int, bytes, str, str]

SEPARATOR = b"\xff\xfe"
MOST_MESSAGES = 40
_PLAIN = (
    "i INT, l BIGINT, b BYTE, f FLOAT, d DOUBLE, m DECIMAL(5,2), t STRING, y BINARY, o BOOLEAN, a DATE, z TIMESTAMP, "
    "n TIMESTAMP_NTZ"
)
_NESTED = (
    "p STRUCT<q: STRUCT<i: INT, t: STRING NOT NULL>, y: BINARY>, v ARRAY<INT>, w ARRAY<ARRAY<STRING>>, "
    "s ARRAY<STRUCT<m: DECIMAL(5,2), d: DATE NOT NULL>>"
)
_MAPS = "g MAP<STRING, INT>, k MAP<STRING, ARRAY<STRUCT<d: DATE, i: BIGINT>>>, h STRUCT<k: MAP<STRING, STRING>>, i INT"
_FORMED = "z TIMESTAMP, s TIMESTAMP_NTZ, x BINARY, j STRING, e ARRAY<STRUCT<j: STRING, t: TIMESTAMP>>, i INT, t STRING"
_FORMATS = {"z": "epoch_ms", "s": "epoch_s", "x": "hex", "j": "json", "e.element.j": "json", "e.element.t": "epoch_us"}
_STREAMS: tuple[Stream, ...] = (
    stream_of(columns=_PLAIN),
    stream_of(columns=_NESTED),
    stream_of(columns=_MAPS),
    stream_of(columns=_PLAIN, coerce="lenient"),
    stream_of(columns=_FORMED, formats=_FORMATS),
    stream_of(columns=_NESTED, unknown_fields="rescue"),
)


class _Target:
    def __init__(self, stream: Stream) -> None:
        columns = stream.record.schema_of_columns
        self._converters = [
            StreamConverter(stream, RecordInputs(native_decoder=decoder)) for decoder in native_decoders()
        ]
        self._strict = StrictDecoder(
            columns, DecodeOptions(stream.record.forms, lenient=stream.record.coerce == "lenient")
        )
        self._leftovers = Leftovers(columns) if stream.record.rescues else None
        self._rescue_column = stream.record.rescue_column
        self._row_type = pa.struct(list(to_arrow_schema(columns)))

    def check(self, messages: list[bytes]) -> None:
        """Raises AssertionError when a message's result differs from decoding it alone."""
        rows, places, letters = [], [], []
        for place, message in enumerate(messages):
            outcome = self._strict.decode(message)
            if isinstance(outcome, Refusal):
                letters.append((100 + place, message, outcome.error_class.value, outcome.error))
            else:
                rows.append(outcome)
                places.append(100 + place)
        wanted = pa.array(rows, self._row_type).to_pylist()  # through Arrow, for its types
        if self._leftovers is not None:
            for row, place in zip(wanted, places, strict=True):
                row[self._rescue_column] = self._leftovers.of(messages[place - 100].decode())
        for converter in self._converters:
            (staged,) = staged_batches(converter, [batch_of(messages)])
            _check_staged(staged, places, letters, wanted)


def _check_staged(staged: StagedRows, places: list[int], letters: list[Letter], wanted: list[Row]) -> None:
    rows, dead = staged.rows
    rows.validate(full=True)
    assert rows.column("_kafka_offset").to_pylist() == places
    names = ("_kafka_offset", "value", "error_class", "error")
    assert list(zip(*(dead.column(name).to_pylist() for name in names), strict=True)) == letters
    have = [{name: value for name, value in row.items() if not name.startswith("_kafka")} for row in rows.to_pylist()]
    assert repr(have) == repr(wanted)  # unlike equality, tells -0.0 from 0.0


@cache
def _target(place: int) -> _Target:
    return _Target(_STREAMS[place])


def check(data: bytes) -> None:
    if data:
        messages = data[1:].split(SEPARATOR)[:MOST_MESSAGES]
        _target(data[0] % len(_STREAMS)).check(messages)


_SEED_MESSAGES: tuple[tuple[bytes, ...], ...] = (
    (
        b'{"i":1,"l":-9223372036854775808,"f":1.5,"d":1e-300,"m":"1.25","t":"\\u00e9\\ud83d\\ude00","o":true}',
        b'{"y":"aGk=","a":"2024-02-29","z":"2024-02-29T12:00:00.000001Z","n":"2024-02-29 12:00:00","b":-128}',
        b' {"i" : null , "u":[{"x":[1,2,{}]}] } ',
        b"",
        b'{"i":1} {"i":2}',
        b'{"i":1',
        b',"t":"x"}',
        b'{"t":"\xff"}',
        b'{"i":1,"i":2}',
        b'{"d":NaN}',
        b'{"t":"\\ud800"}',
    ),
    (
        b'{"p":{"q":{"i":1,"t":"x"},"y":null},"v":[1,null],"w":[["a"],[],null],"s":[{"m":1.5,"d":"2024-01-01"}]}',
        b'{"p":{"q":{"i":1}}}',
        b'{"v":[1,[2]],"more":{"a" : 1.10}}',
    ),
    (
        b'{"g":{"a":1,"b":null},"k":{"":[{"d":"2024-01-01","i":1}]},"h":{"k":{"x":"y"}}}',
        b'{"g":{"a":1,"a":2}}',
        b'{"g":{"a":1.0}}',
    ),
    (b'{"i":"7","d":"1e3","t":12,"o":"true","m":1}', b'{"i":"7.0","t":{"a":1},"l":1.0}'),
    (
        b'{"z":1600000000123,"s":1600000000.5,"x":"00ff","j":{"a":[1.10, "\\u0041"]},"e":[{"j":[],"t":1},null]}',
        b'{"z":"x","j":[1,]}',
    ),
    (b'{"new":1,"p":{"q":{"t":"x","n":[1]}},"s":[{"d":"2024-01-01","x":null},null]}', b'{"v":[],"new":2,"new":3}'),
)
SEEDS = tuple(bytes([place]) + SEPARATOR.join(messages) for place, messages in enumerate(_SEED_MESSAGES))
WORDS = (
    *(f'"{name}":' for name in "ilbfdmtyoaznpqvwsgkhxje"),
    *("null", "true", "false", "{}", "[]", "NaN", "-0", "1e400", "1e-400", "9223372036854775808", "1.5", "\\ud800"),
    *(
        '"2024-02-29"',
        '"2024-02-29T24:00:00Z"',
        '"0001-01-01T00:00:00+14:00"',
        '"aGk="',
        "\\u0041",
        '"\\u0069":',
        "\ufeff",
    ),
    *('{"i":1}', '{"q":{"t":""}}', ",", ":", "\\", '"', "\n"),
)
"""Words of JSON and of these columns, for the fuzzer to insert."""
