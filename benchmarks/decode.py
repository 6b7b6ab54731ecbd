"""Messages per CPU second of the decoder: ``python -m benchmarks.decode``.

Decodes records of about 230 bytes, in batches of 10,000 as a consumer returns them, one batch after the other, with the
reader in C and without it; without bad records, and with 1 % and 50 % of each kind of bad record. The best of three
runs counts; compare ratios.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from common.schema import parse_ddl
from common.settings import Native
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import no_native_decoder
from stage_writer.native.library import find_reader

_MESSAGES = 100_000
_BATCH = 10_000
_FLAT = (
    "meta STRUCT<producer: STRUCT<timestamp: STRING>>, method STRING, session_id STRING, status INT, url STRING, "
    "uuid STRING"
)
_SCHEMAS = {
    "flat": _FLAT,
    "with a timestamp": _FLAT.replace("timestamp: STRING", "timestamp: TIMESTAMP"),
    "with a decimal": _FLAT.replace("status INT", "status DECIMAL(10,2)"),
    "with a map": _FLAT.replace("STRUCT<producer:", "MAP<STRING,"),
    "with a map of maps": _FLAT.replace(
        "STRUCT<producer: STRUCT<timestamp: STRING>>", "MAP<STRING, MAP<STRING, STRING>>"
    ),
}
_DEFECTS: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda message: message[:-1],
    "not UTF-8": lambda message: message.replace(b"youku", b"you\xff"),
    "a string for an INT": lambda message: message.replace(b'"status":', b'"status":"x","more":'),
    "beyond the range": lambda message: message.replace(b'"status":', b'"status":9999999999,"more":'),
    "beyond 64 bits": lambda message: message.replace(b'"status":', b'"status":99999999999999999999,"more":'),
    "a field twice": lambda message: message.replace(b'"status":', b'"status":1,"status":'),
    "a trailing comma": lambda message: message[:-1] + b",}",
}


def _message(number: int) -> bytes:
    record = {
        "meta": {"producer": {"timestamp": "2021-03-24T15:06:17.321710+00:00"}},
        "method": ("GET", "POST", "DELETE")[number % 3],
        "session_id": f"7c28bcf9-be26-4d0b-931a-{number * 7919:012x}",
        "status": (200, 404)[number % 2],
        "url": "http://www.youku.com",
        "uuid": f"831c6afa-375c-4988-b248-{number:012x}",
    }
    return json.dumps(record, separators=(",", ":")).encode()


def _messages_per_cpu_s(decoder: Decoder, messages: Sequence[bytes]) -> float:
    batches = [pa.array(messages[start : start + _BATCH], pa.binary()) for start in range(0, len(messages), _BATCH)]
    best_s = float("inf")
    for _ in range(3):
        begun_s = time.process_time()
        for batch in batches:
            decoder.decode(batch)
        best_s = min(best_s, time.process_time() - begun_s)
    return len(messages) / best_s


def _report(name: str, columns: str, messages: Sequence[bytes]) -> None:
    rates = [
        _messages_per_cpu_s(Decoder(parse_ddl(columns), native_decoder=native_decoder), messages)
        for native_decoder in (find_reader(Native.ON).make, no_native_decoder)
    ]
    sys.stdout.write(f"{name:24} {rates[0]:12,.0f} {rates[1]:12,.0f} messages per CPU-second, with C and without\n")
    sys.stdout.flush()


def main() -> None:
    good = [_message(number) for number in range(_MESSAGES)]
    for name, columns in _SCHEMAS.items():
        _report(name, columns, good)
    pretty = [json.dumps(json.loads(message), indent=2).encode() for message in good]
    _report("pretty-printed", _FLAT, pretty)
    for every in (100, 2):
        for name, corrupt in _DEFECTS.items():
            messages = [corrupt(message) if number % every == 0 else message for number, message in enumerate(good)]
            _report(f"{100 // every} % {name}", _FLAT, messages)


if __name__ == "__main__":
    main()
