"""Records in Avro's binary form as JSON text, by fastavro.

Rules:

1. A record is read with the schema that it was written with. With a reader's schema, fastavro resolves the two first:
   defaults, aliases and promotions are then the reader's. It resolves bare values, so a decimal of another scale or a
   time of another unit would become another value: such schemas are refused (`require_same_units`).
2. The bytes are exactly one record (`avro_bytes`): trailing bytes, a truncated record and invalid UTF-8 are refused.
3. fastavro gives the bare values, without logical types, and each member of a choice in a record of its own: so nothing
   is rounded and no choice is guessed. A plan of the record (`avro_plan`) defines the JSON of each value.
4. The ordinary records of a block may be taken by a reader in C (`MakeAvroPass`); the result is the same without.
"""

import struct
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Protocol, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.errors import SchemaError
from common.schema import StructType
from common.schema.avro import AvroSchema, Schema, member_names, parse_avro, promoted, refusing_schemas, type_name
from stage_writer.decode.batch import in_place
from stage_writer.decode.binary.avro_bytes import DamagedError, end_of
from stage_writer.decode.binary.avro_plan import AvroNode, Planner, plain_name
from stage_writer.decode.binary.avro_resolution import plain_default, require_same_units
from stage_writer.decode.binary.texts import MakeRecordReader, RefusedBody, Texts
from stage_writer.decode.decode_options import DecodeOptions
from stage_writer.decode.rejects import ErrorClass, Refusal

_NO_COLUMNS = StructType(())
_LONGEST_REASON = 200


class AvroPass(Protocol):
    """Reads the ordinary records of a block."""

    def read(self, bodies: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, NDArray[np.bool_]]:
        """The JSON of those that it takes, one after the other; and for each body whether it is taken."""


MakeAvroPass = Callable[[AvroNode], AvroPass | None]
"""Makes a native reader for the records of a plan, or None."""


def no_avro_pass(node: AvroNode) -> AvroPass | None:  # noqa: ARG001 - a port's arguments
    """A `MakeAvroPass` that makes none."""
    return None


class AvroReader:
    """A `RecordReader` of one schema. Raises SchemaError for an unreadable schema."""

    def __init__(
        self,
        writer: AvroSchema,
        columns: StructType,
        reading: DecodeOptions,
        *,
        reader: AvroSchema | None = None,
        make_pass: MakeAvroPass = no_avro_pass,
        is_key: bool = False,
    ) -> None:
        """``columns`` and ``reading`` are the stream's, as far as they decide a value's text.

        ``reader`` is the schema that records are resolved to. A message key may be one bare value.
        """
        read_as = reader or writer
        kind = type_name(read_as.resolved(read_as.schema))
        is_record = kind in {"record", "error"}
        if not is_record and not is_key:
            raise SchemaError(f"the schema's type is {kind}, not record", "send records")
        column = columns if is_record or len(columns) != 1 else columns.fields[0].type
        with refusing_schemas():
            node = Planner(read_as).plan(read_as.schema, "", column, reading)
            self._node = node
            self._walked = node if reader is None else Planner(writer).plan(writer.schema, "", _NO_COLUMNS, reading)
            self._unresolved, self._read = _reader_of(writer, reader)
        self._pass = None if reader is not None else make_pass(node)

    def read(self, bodies: pa.LargeBinaryArray) -> Texts:
        if self._pass is None:
            documents, refused = self._one_by_one(bodies, range(len(bodies)))
            return Texts(pa.array(documents, pa.large_binary()), refused)
        taken, is_taken = self._pass.read(bodies)
        if len(taken) == len(bodies):
            return Texts(taken, ())
        left = np.flatnonzero(~is_taken)
        documents, refused = self._one_by_one(bodies, left.tolist())
        parts = [taken, pa.array(documents, pa.large_binary())]
        return Texts(in_place(parts, [np.flatnonzero(is_taken), left], len(bodies)), refused)

    def _one_by_one(
        self, bodies: pa.LargeBinaryArray, indexes: Sequence[int]
    ) -> tuple[list[bytes | None], list[tuple[int, Refusal]]]:
        documents: list[bytes | None] = []
        refused: list[tuple[int, Refusal]] = []
        for index in indexes:
            outcome = self._one(bodies[index].as_py())
            if isinstance(outcome, Refusal):
                refused.append((index, outcome))
                documents.append(None)
            else:
                documents.append(outcome)
        return documents, refused

    def _one(self, body: bytes) -> bytes | Refusal:
        try:
            left = len(body) - end_of(self._walked, body)
            if left:
                return _not_a_record(f"{left} bytes follow the record")
            return self._node.text(self._read(BytesIO(body))).encode()
        except DamagedError as error:
            return _not_a_record(str(error))
        except RefusedBody as refused:
            return refused.refusal
        except self._unresolved as error:
            problem = f"the record cannot be read as the schema_file says: {str(error)[:_LONGEST_REASON]}"
            return Refusal(ErrorClass.WRONG_SCHEMA, problem)
        except _MALFORMED as error:  # whose texts hold what is not the message's, as an address of an object
            is_text = isinstance(error, UnicodeDecodeError)
            reason = "a string is not UTF-8" if is_text else "the message ends early, or does not match the schema"
            return _not_a_record(reason)


def _not_a_record(problem: str) -> Refusal:
    return Refusal(ErrorClass.INVALID_RECORD, f"the message is not one record of its Avro schema: {problem}")


# The errors that fastavro lets through for bytes that do not match the schema.
_MALFORMED = (
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
    AssertionError,
    struct.error,
    StopIteration,
)


def make_avro_reader(
    columns: StructType,
    reading: DecodeOptions,
    reader: AvroSchema | None,
    make_pass: MakeAvroPass,
    *,
    is_key: bool = False,
) -> MakeRecordReader:
    """Raises SchemaError for a ``reader`` that no record can be resolved to."""
    if reader is not None:
        AvroReader(reader, columns, reading, reader=reader)

    def make(schema: str, references: Sequence[tuple[str, str]]) -> AvroReader:
        writer = parse_avro(schema, [text for _, text in references])
        return AvroReader(writer, columns, reading, reader=reader, make_pass=make_pass, is_key=is_key)

    return make


def _reader_of(writer: AvroSchema, reader: AvroSchema | None) -> tuple[type[Exception], Callable[[BytesIO], object]]:
    """The function that reads one record (rule 3), and the error that it raises for schemas that do not resolve."""
    from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415 - only with Avro
    from fastavro.read import SchemaResolutionError  # noqa: PLC0415 - only with Avro

    plain = parse_schema(_Plain(writer, keeps_defaults=False).schema(writer.schema))
    resolved = None
    if reader is not None:
        require_same_units(writer, reader)
        resolved = parse_schema(_Plain(reader, keeps_defaults=True).schema(reader.schema), _ignore_default_error=True)
    return SchemaResolutionError, lambda file: schemaless_reader(file, plain, resolved)


class _Plain:
    """Rewrites a schema to the schema of the same bytes, of bare values and with the members of a choice as records.

    A name is defined where it is first used. Defaults are a reader's, and of the values that it gives.
    """

    def __init__(self, avro: AvroSchema, *, keeps_defaults: bool) -> None:
        self._avro = avro
        self._keeps_defaults = keeps_defaults
        self._defined: set[str] = set()
        self._choices = 0

    def schema(self, schema: Schema) -> Schema:
        if isinstance(schema, list):
            return self._union(cast("list[Schema]", schema))
        if isinstance(schema, dict):
            return self._complex(schema)
        return schema if schema in self._defined else self.schema(self._avro.names.get(schema, {"type": schema}))

    def _complex(self, schema: dict[str, object]) -> Schema:
        if isinstance(schema["type"], dict | list):
            return self.schema(cast("Schema", schema["type"]))
        plain = {key: value for key, value in schema.items() if key in _KEPT}
        if "name" in plain:
            self._defined.add(str(plain["name"]))
        if "fields" in plain:
            plain["fields"] = [self._field(each) for each in cast("list[dict[str, object]]", plain["fields"])]
        for key in ("items", "values"):
            if key in plain:
                plain[key] = self.schema(cast("Schema", plain[key]))
        return plain

    def _field(self, field: dict[str, object]) -> dict[str, object]:
        schema = cast("Schema", field["type"])
        plain = {key: field[key] for key in ("name", "aliases") if key in field} | {"type": self.schema(schema)}
        if "default" in field and self._keeps_defaults:
            plain["default"] = plain_default(self._avro, schema, field["default"])
        return plain

    def _union(self, members: list[Schema]) -> Schema:
        if promoted(self._avro, members) is not None:
            return [self.schema(each) for each in members]
        self._choices += 1
        names = member_names(self._avro, members)
        choices = [
            (f"choice{self._choices}.{plain_name(name)}", name, each) for name, each in zip(names, members, strict=True)
        ]
        return [
            "null" if name == "null" else _record_of(full_name, plain_name(name), self.schema(each))
            for full_name, name, each in choices
        ]


def _record_of(name: str, field: str, schema: Schema) -> Schema:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": schema}]}


_KEPT = ("type", "name", "aliases", "fields", "symbols", "size", "items", "values", "default")
