"""Dates and timestamps from their text, whole arrays at a time, by arithmetic on a matrix of bytes.

Why not Arrow's or DuckDB's casts: the first raises for the whole array when one text is wrong, the second accepts forms
that are refused here, and rounds. The forms are those of `strict`, rule 5; other texts are marked, never raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_DATE_LENGTH = 10
_TIME_LENGTH = 19
_FRACTION_DIGITS = 9
_MICROSECOND_DIGITS = 6
_LONGEST = _TIME_LENGTH + 1 + _FRACTION_DIGITS + len("+hh:mm")
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_FEBRUARY = 2
_DAY_S = 86_400
_SECOND_US = 1_000_000
FIRST_US = -62_135_596_800 * _SECOND_US  # 0001-01-01T00:00:00Z
END_US = 253_402_300_800 * _SECOND_US  # 10000-01-01T00:00:00Z
_ROWS_AT_A_TIME = 16_384  # the matrices stay in the processor's cache


def dates(texts: pa.StringArray) -> tuple[pa.Array, Mask]:
    """The texts as ``date32``, and which of them do not have the form ``YYYY-MM-DD`` or are not valid dates."""
    days, wrong = _in_pieces(texts, _DATE_LENGTH, _days_of_texts)
    return _with_nulls(days.astype(np.int32), texts, pa.date32()), wrong


def timestamps(texts: pa.StringArray, *, with_zone: bool) -> tuple[pa.Array, Mask]:
    """The texts as microseconds, in UTC or (``with_zone`` false) without a zone, and which of them are wrong."""
    read = _zoned_microseconds if with_zone else _plain_microseconds
    values, wrong = _in_pieces(texts, _LONGEST, read)
    return _with_nulls(values, texts, pa.timestamp("us", tz="UTC" if with_zone else None)), wrong


def _with_nulls(values: NDArray[np.integer], texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    nulls = texts.is_null().to_numpy(zero_copy_only=False) if texts.null_count else None
    storage = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.array(values, storage, mask=nulls).view(arrow_type)


if TYPE_CHECKING:
    from collections.abc import Callable

    Reader = Callable[[Bytes, Numbers], tuple[Numbers, Mask]]


def _in_pieces(texts: pa.StringArray, width: int, read: Reader) -> tuple[Numbers, Mask]:
    values = np.zeros(len(texts), np.int64)
    wrong = np.zeros(len(texts), np.bool_)
    for start in range(0, len(texts), _ROWS_AT_A_TIME):
        piece = texts.slice(start, _ROWS_AT_A_TIME)
        part = slice(start, start + len(piece))
        values[part], wrong[part] = read(*_matrix(piece, width))
        if piece.null_count:
            wrong[part] &= piece.is_valid().to_numpy(zero_copy_only=False)
    return values, wrong


def _matrix(texts: pa.StringArray, width: int) -> tuple[Bytes, Numbers]:
    """The texts' first ``width`` bytes as rows, padded with zeros, and the texts' lengths."""
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    columns = np.arange(width)
    if data_buffer is None or offsets[-1] == offsets[0]:
        return np.zeros((len(texts), width), np.uint8), lengths
    data = np.frombuffer(data_buffer, np.uint8)
    longest = int(lengths.max())
    if int(lengths.min()) == longest:  # times of one producer mostly have the same length: no need to gather them
        even = data[offsets[0] : offsets[-1]].reshape(len(texts), longest)[:, :width]
        return np.pad(even, ((0, 0), (0, width - even.shape[1]))), lengths
    places = np.minimum(offsets[:-1, None] + columns, len(data) - 1)
    matrix = data[places]
    matrix[columns >= lengths[:, None]] = 0
    return matrix, lengths


def _number(digits: Bytes) -> Numbers:
    """The number in each row of digits (0 to 9)."""
    value = np.zeros(len(digits), np.int64)
    for column in range(digits.shape[1]):
        value = value * 10 + digits[:, column]
    return value


def _digits(matrix: Bytes) -> Bytes:
    return matrix - np.uint8(ord("0"))  # other characters become more than 9


def _days_of_texts(matrix: Bytes, lengths: Numbers) -> tuple[Numbers, Mask]:
    days, wrong = _days(matrix)
    return days, wrong | (lengths != _DATE_LENGTH)


def _days(matrix: Bytes) -> tuple[Numbers, Mask]:
    """Days since 1970-01-01 of the first ten bytes, and which of them are not valid dates in the years 1 to 9999."""
    digits = _digits(matrix[:, :_DATE_LENGTH])
    wrong = (matrix[:, 4] != ord("-")) | (matrix[:, 7] != ord("-"))
    for column in (0, 1, 2, 3, 5, 6, 8, 9):
        wrong |= digits[:, column] > 9  # noqa: PLR2004 - the highest digit
    year, month, day = _number(digits[:, :4]), _number(digits[:, 5:7]), _number(digits[:, 8:10])
    wrong |= (year < 1) | (month < 1) | (month > 12)  # noqa: PLR2004 - a calendar's
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    longest = _MONTH_DAYS[np.where(wrong, 0, month)] + (leap & (month == _FEBRUARY))
    wrong |= (day < 1) | (day > longest)
    # Years start in March here, so that the leap day is the last day of its year.
    shifted = year - (month <= _FEBRUARY)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + day_of_year - 719_468
    return days, wrong


def _seconds_of_day(matrix: Bytes) -> tuple[Numbers, Mask]:
    """Seconds since midnight of the bytes 10 to 18, and which of them are not valid times of day."""
    digits = _digits(matrix)
    separator = matrix[:, 10]
    wrong = (separator != ord("T")) & (separator != ord("t")) & (separator != ord(" "))
    wrong |= (matrix[:, 13] != ord(":")) | (matrix[:, 16] != ord(":"))
    for column in (11, 12, 14, 15, 17, 18):
        wrong |= digits[:, column] > 9  # noqa: PLR2004 - the highest digit
    hour, minute, second = _number(digits[:, 11:13]), _number(digits[:, 14:16]), _number(digits[:, 17:19])
    wrong |= (hour > 23) | (minute > 59) | (second > 59)  # noqa: PLR2004 - a clock's
    return hour * 3600 + minute * 60 + second, wrong


def _fraction(matrix: Bytes) -> tuple[Numbers, Numbers, Mask]:
    """Microseconds after the point, how many bytes the point and the decimals take, and which of them are wrong."""
    point = matrix[:, _TIME_LENGTH] == ord(".")
    if not point.any():
        nothing = np.zeros(len(matrix), np.int64)
        return nothing, nothing, point
    digits = _digits(matrix[:, _TIME_LENGTH + 1 : _TIME_LENGTH + 1 + _FRACTION_DIGITS])
    microseconds = np.zeros(len(matrix), np.int64)
    count = np.zeros(len(matrix), np.int64)
    going = point.copy()
    wrong = np.zeros(len(matrix), np.bool_)
    for column in range(_FRACTION_DIGITS):
        going &= digits[:, column] <= 9  # noqa: PLR2004 - the highest digit
        count += going
        if column < _MICROSECOND_DIGITS:
            microseconds = microseconds * 10 + np.where(going, digits[:, column], 0)
        else:
            wrong |= going & (digits[:, column] != 0)
    return microseconds, count + point, wrong | (point & (count == 0))


def _plain_microseconds(matrix: Bytes, lengths: Numbers) -> tuple[Numbers, Mask]:
    values, end, wrong = _until_zone(matrix)
    return values, wrong | (lengths != end)


def _zoned_microseconds(matrix: Bytes, lengths: Numbers) -> tuple[Numbers, Mask]:
    values, end, wrong = _until_zone(matrix)
    left = lengths - end
    rows = np.arange(len(matrix))
    sign = matrix[rows, np.minimum(end, _LONGEST - 1)]
    zulu = (left == 1) & ((sign == ord("Z")) | (sign == ord("z")))
    with_offset = (left == len("+hhmm")) | (left == len("+hh:mm"))
    wrong |= ~(zulu | with_offset | (left == 0))
    if with_offset.any():
        offset_s, bad_offset = _offset_seconds(matrix, np.where(with_offset, end, 0), left)
        values = values - np.where(with_offset, offset_s, 0) * _SECOND_US
        wrong |= with_offset & bad_offset
    return values, wrong | (values < FIRST_US) | (values >= END_US)


def _until_zone(matrix: Bytes) -> tuple[Numbers, Numbers, Mask]:
    """Microseconds as if in UTC, where the zone would start, and what is wrong before it."""
    days, wrong = _days(matrix)
    seconds, no_time = _seconds_of_day(matrix)
    microseconds, taken, bad_fraction = _fraction(matrix)
    values = (days * _DAY_S + seconds) * _SECOND_US + microseconds
    return values, taken + _TIME_LENGTH, wrong | no_time | bad_fraction


def _offset_seconds(matrix: Bytes, start: Numbers, left: Numbers) -> tuple[Numbers, Mask]:
    """The seconds of ``±hh:mm`` or ``±hhmm`` at ``start``, and which of them are wrong."""
    rows = np.arange(len(matrix))
    colon = left == len("+hh:mm")
    last = matrix.shape[1] - 1
    sign = matrix[rows, start]
    places = np.stack([start + 1, start + 2, start + 3 + colon, start + 4 + colon], axis=1)
    digits = _digits(matrix[rows[:, None], np.minimum(places, last)])
    wrong = (digits > 9).any(axis=1) | ((sign != ord("+")) & (sign != ord("-")))  # noqa: PLR2004 - the highest digit
    wrong |= colon & (matrix[rows, np.minimum(start + 3, last)] != ord(":"))
    hours, minutes = _number(digits[:, :2]), _number(digits[:, 2:])
    wrong |= (hours > 23) | (minutes > 59)  # noqa: PLR2004 - a clock's
    return (hours * 3600 + minutes * 60) * np.where(sign == ord("-"), -1, 1), wrong
