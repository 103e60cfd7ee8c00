"""MariaDB's temporal values with a fraction, in the format from before 10.1 (`mysql56_temporal_format=OFF`).

A table keeps it until it is rebuilt. The binlog says neither that there is a fraction nor how many digits it has, so
the sizes come from the column's type. Rare: a value is written anew as servers write it since, and read as that.
"""

from __future__ import annotations

from tidemill.decoders._shared.mysql import table_map as m
from tidemill.errors import DecodeError

NOW = {m.TIMESTAMP: m.TIMESTAMP2, m.DATETIME: m.DATETIME2, m.TIME: m.TIME2}
#: Bytes by digits of the fraction: `sec_part_bytes`, `datetime_hires_bytes`, `time_hires_bytes` of MariaDB.
_SIZES = {m.TIMESTAMP: (4, 5, 5, 6, 6, 7, 7), m.DATETIME: (8, 6, 6, 7, 7, 7, 8), m.TIME: (3, 4, 4, 5, 5, 5, 6)}
_TIME_ZERO = 838 * 3600 + 59 * 60 + 59 + 1  # seconds that are added to a TIME, so that none is negative


def size(kind: int, digits: int) -> int:
    return _SIZES[kind][digits]


def rewritten(kind: int, digits: int, value: bytes) -> bytes:
    """
    >>> rewritten(m.TIMESTAMP, 1, bytes.fromhex("65e1199e07")).hex()
    '65e1199e46'
    """
    unit = 10**digits
    number = int.from_bytes(value, "big")
    if kind == m.TIMESTAMP:
        fraction = number & (1 << 8 * (len(value) - 4)) - 1
        if fraction >= unit:
            raise _broken_error()
        return value[:4] + _fraction(fraction, digits)
    if kind == m.TIME:
        number -= _TIME_ZERO * unit
        seconds, fraction = divmod(abs(number), unit)
        if seconds >= _TIME_ZERO:
            raise _broken_error()
        width = 3 + (digits + 1) // 2
        whole = (seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60).to_bytes(3, "big")
        packed = int.from_bytes(whole + _fraction(fraction, digits), "big")
        return ((1 << 8 * width - 1) + (-packed if number < 0 else packed)).to_bytes(width, "big")
    seconds, fraction = divmod(number, unit)
    days, seconds = divmod(seconds, 86_400)
    clock = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    if days >> 5 > 9999 * 13 + 12:
        raise _broken_error()
    return (1 << 39 | days << 17 | clock).to_bytes(5, "big") + _fraction(fraction, digits)


def _fraction(number: int, digits: int) -> bytes:
    """An even number of digits, two a byte."""
    return (number * 10 ** (digits % 2)).to_bytes((digits + 1) // 2, "big")


def _broken_error() -> DecodeError:
    return DecodeError("a temporal value of MariaDB's old format does not follow it")
