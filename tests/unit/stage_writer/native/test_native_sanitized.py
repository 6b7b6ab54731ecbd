"""The parts in C under the compiler's sanitizers: no byte is touched that is not its own, no rule of C is broken.

`make native-fuzz` plays more rounds.
"""

import io
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import fastavro
import pytest

from common.schema import StructType, parse_ddl
from common.schema.avro import parse_avro
from common.settings.formats import forms_of
from stage_writer.decode.binary.avro_plan import Planner
from stage_writer.decode.decode_options import STRICT, DecodeOptions
from stage_writer.native.avro import avro_parts
from stage_writer.native.plan import plan_of
from stage_writer.native.reader import powers_of_five
from tests.builders import required

SOURCES = Path(__file__).parents[3] / "native"
SEED = os.environ.get("SEED", "1")
ROUNDS = max(5000, int(os.environ.get("ROUNDS", "0")))
"""With fewer rounds, the tests could not say how much of it is well-formed, or how often memory is refused."""
SANITIZED = "-std=c11 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover".split()
COLUMNS = parse_ddl(
    "b BYTE, s SHORT, i INT, l BIGINT, f FLOAT, d DOUBLE, m DECIMAL(38,18), t STRING NOT NULL, y BINARY, h BINARY, "
    "o BOOLEAN, a DATE, z TIMESTAMP, n TIMESTAMP_NTZ, e TIMESTAMP, j STRING, "
    "p STRUCT<q: STRUCT<x: INT, `a name of more than sixteen bytes`: STRING>, o: BOOLEAN>, "
    "v ARRAY<ARRAY<DOUBLE>>, w ARRAY<STRUCT<t: STRING, o: BOOLEAN>>, g MAP<STRING, ARRAY<INT>>"
)
READING = DecodeOptions(forms_of(COLUMNS, {"h": "hex", "e": "epoch_ms", "j": "json"}))
MESSAGES = (
    b'{"b":-128,"s":1,"i":2147483647,"l":-9223372036854775808,"f":1.5,"d":0.30000000000000004,"m":"-12.5","t":""}',
    b'{"t":"\\u00e9\\ud83d\\ude00 \xc3\xa9\xf0\x9f\x98\x80\\n","y":"aGk=","h":"00fF","o":true,"a":"2024-02-29"}',
    b'{"t":"x","z":"2024-02-29T12:00:00.000001+01:30","n":"0001-01-01 00:00:00","e":1600000000123.5}',
    b' { "t" : "a long one, of more than sixteen bytes, twice over" , "j" : { "a" : [1, "\\u0041", {}] } , "u":[[]]}',
    b'{"p":{"q":{"x":1,"a name of more than sixteen bytes":"y"},"o":null},"v":[[1e300,-0.0],[],null],"t":"z"}',
    b'{"w":[{"t":"a"},null,{"o":false,"t":null}],"g":{"":[1],"k\\u0041":[],"x":null},"t":"w"}',
    b'{"unknown":{"deep":[{"a":[1,2,{"b":"\\""}]}]},"t":"x","d":123456789012345678e-20,"\\u006d":1.10}',
    b"[" * 1100,
    b'{"t":1',
    b"",
)


def corpus() -> bytes:
    plan = required(plan_of(COLUMNS, READING))
    parts = [struct.pack("=i", len(plan.nodes)), plan.parts.tobytes(), struct.pack("=i", len(plan.names)), plan.names]
    parts += [powers_of_five().tobytes(), struct.pack("=i", len(MESSAGES))]
    for message in MESSAGES:
        parts += [struct.pack("=i", len(message)), message]
    return b"".join(parts)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Skips the tests where there is none with sanitizers."""
    compiler, folder = shutil.which("cc"), tmp_path_factory.mktemp("empty")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n", "utf-8")
    command = [compiler, *SANITIZED, "-o", str(folder / "empty"), str(folder / "empty.c")]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("the C compiler has no sanitizers")
    return compiler


def sanitized(compiler: str, folder: Path, source: str, *options: str) -> Path:
    """The program of a source, compiled."""
    options = (*SANITIZED, "-Wall", "-Wextra", "-Werror", *options)
    subprocess.run([compiler, *options, "-o", folder / "program", SOURCES / source], check=True)
    return folder / "program"


def played(program: Path, *arguments: Path | int) -> list[int]:
    """The counts that the program prints."""
    done = subprocess.run([program, *map(str, arguments), SEED], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split() if word.isdigit()]


@pytest.mark.parametrize("portable", [False, True], ids=["as it is", "without intrinsics"])
def test_hostile_bytes(compiler: str, tmp_path: Path, portable: bool) -> None:  # noqa: FBT001 - a parameter of a test
    program = sanitized(compiler, tmp_path, "hostile.c", *(["-DKDE_PORTABLE"] if portable else []))
    (tmp_path / "corpus").write_bytes(corpus())
    assert played(program, tmp_path / "corpus", ROUNDS)[0] > ROUNDS  # of six a round, on average


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": ["null", "long"]},
        {"name": "i", "type": "int"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "o", "type": "boolean"},
        {"name": "t", "type": "string"},
        {"name": "y", "type": ["bytes", "string"]},
        {"name": "x", "type": {"type": "fixed", "name": "X", "size": 2}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4}},
        {"name": "a", "type": {"type": "int", "logicalType": "date"}},
        {"name": "z", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "l", "type": {"type": "array", "items": {"type": "map", "values": ["null", "X"]}}},
    ],
}
MAPS = [{"k": None, "j": b"vw"}, {"": b"xx"}]
AVRO_VALUES: list[tuple[object, ...]] = [
    (None, -1, 0.1, 1.25, True, "é\n😀", b"\xff", b"xy", "B", b"\x80", -719162, -1, []),
    (1, 2**31 - 1, 1e30, 0.1 + 0.2, False, "a" * 70, '"', b"xy", "A", b"", 0, 0, [{}]),
    (-(2**63), 0, 0, -0.0, True, "", b"abcd", b"\0\0", "A", b"\x7f" * 8, 2932896, 2**50, MAPS),
]


def avro_corpus() -> bytes:
    avro = parse_avro(json.dumps(AVRO))
    laid_out = required(avro_parts(Planner(avro).plan(avro.schema, "", StructType(()), STRICT)))
    parts = [struct.pack("=i", len(laid_out[0])), laid_out[0].tobytes(), struct.pack("=i", len(laid_out[1]))]
    parts += [laid_out[1], struct.pack("=i", len(AVRO_VALUES))]
    for values in AVRO_VALUES:
        body, record = io.BytesIO(), dict(zip("nifdotyxemazl", values, strict=True))
        fastavro.schemaless_writer(body, fastavro.parse_schema(AVRO), record)
        parts += [struct.pack("=i", len(body.getvalue())), body.getvalue()]
    return b"".join(parts)


@pytest.mark.parametrize("portable", [False, True], ids=["as it is", "without intrinsics"])
def test_hostile_avro(compiler: str, tmp_path: Path, portable: bool) -> None:  # noqa: FBT001 - a parameter of a test
    program = sanitized(compiler, tmp_path, "avro.c", "-Wno-unused-function", *(["-DKDE_PORTABLE"] if portable else []))
    (tmp_path / "corpus").write_bytes(avro_corpus())
    assert played(program, tmp_path / "corpus", ROUNDS)[0] > ROUNDS  # of six a round, on average


def test_messages_of_a_queue(compiler: str, tmp_path: Path) -> None:
    """What is taken is what was sent, also where memory is refused now and then; each message is freed once."""
    program = sanitized(compiler, tmp_path, "taken.c", "-Wno-unused-function")  # of the headers, some are the reader's
    rounds = ROUNDS // 100
    taken, refused = played(program, rounds)
    assert taken > 100 * rounds
    assert refused > rounds // 10
