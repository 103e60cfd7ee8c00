"""Values of columns that an INSERT left out of its image: literal defaults, as the server stores them.

Called by `blocks`, only for rows that lack columns. What cannot be told exactly is refused, never guessed: how the
server would round a fraction depends on sql_mode, what time a TIMESTAMP is on a session's time zone.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
import uuid
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decoders._shared.mysql import charsets, types
from tidemill.errors import DecodeError
from tidemill.model.table import Column, Initial, Table

#: A column without a DEFAULT, and one whose DEFAULT the server computes, in the form of `mysql_schema.defaults`.
NONE, COMPUTED = "", "()"
_SIZE = re.compile(r"\((\d+)")
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_DATETIME = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?")
_TIME = re.compile(r"(-?)(\d{1,3}):(\d{2})(?::(\d{2})(?:\.(\d*))?)?")
_FIX = (
    "Set binlog_row_image=FULL, also in sessions that are open: then every row is whole. What was written before cannot"
    ' be read: run "tidemill recover FILE --snapshot", or "tidemill recover FILE --accept-gap" to go on without it.'
)


@dataclass(frozen=True, slots=True)
class Fill:
    """`odd` is the text of a value that the Arrow type cannot hold; `value` is None then, and for NULL."""

    value: Any
    odd: str = ""


class _Unsure(Exception):
    """Finishes the sentence "its default …"."""


def fill(table: Table, column: Column, default: str | None) -> Fill:
    """The value of a column that an INSERT did not name. `default` is in the form of `defaults`."""
    try:
        return _fill(column, default)
    except (_Unsure, ValueError, ArithmeticError) as error:
        why = str(error) if isinstance(error, _Unsure) else f"({default}) is no {column.type.native} as it stands"
        raise DecodeError(
            f'an INSERT into {table.full_name} came without column "{column.name}", and its default {why}', fix=_FIX
        ) from error


def initial(column: Column, default: str | None) -> Initial | None:
    """The value that the rows which were there got with an ADD COLUMN of this default: the same that an INSERT gets
    which does not name the column, also where sql_mode is strict."""
    if default is None:
        return None
    try:
        found = _fill(column, default)
        if found.odd:
            return Initial(unknown=f"their value is {found.odd}, which is none of the type's")
        return Initial(pa.scalar(found.value, column.type.arrow))
    except _Unsure as error:
        return Initial(unknown=f"the default {error}")
    except (ValueError, ArithmeticError, pa.ArrowException):
        return Initial(unknown=f"the default is no {column.type.native} as it stands")


def _fill(column: Column, default: str | None) -> Fill:
    if default is None:
        raise _Unsure("is not known")
    if default == COMPUTED:
        raise _Unsure("is computed by the server" if not column.generated else "does not count: it is generated")
    if default == NONE:
        return Fill(None) if column.nullable else _zero(column)
    if default.startswith("'"):
        return _of(column, text=default[1:-1])
    if default.startswith("0x"):
        return _of(column, data=bytes.fromhex(default[2:]))
    if default.startswith("@"):
        return _exact(column, default[1:])
    return _of(column, number=default)


def _zero(column: Column) -> Fill:
    """What NOT NULL without a DEFAULT gets where sql_mode is not strict."""
    arrow, base = column.type.arrow, _base(column)
    if base == "enum":
        return Fill(types.labels(column.type.native)[0])
    if base == "json":
        return Fill("null")
    if base in ("uuid", "inet4", "inet6"):
        return Fill({"uuid": str(uuid.UUID(int=0)), "inet4": "0.0.0.0", "inet6": "::"}[base])
    if base == "time" or pa.types.is_temporal(arrow):
        return _of(column, number="0")
    if base == "binary":
        return _of(column, text="")
    if pa.types.is_string(arrow):
        return Fill("")
    if pa.types.is_binary(arrow):
        return Fill(b"")
    if pa.types.is_list(arrow):
        raise _Unsure("is none")
    return _of(column, number="0")


def _exact(column: Column, exact: str) -> Fill:
    if pa.types.is_timestamp(column.type.arrow):
        micros = int(Decimal(exact) * 1_000_000)
        return Fill(dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros))
    return Fill(_to_float(column.type.arrow, exact))


def _of(column: Column, *, text: str | None = None, number: str | None = None, data: bytes | None = None) -> Fill:
    """Of a literal: text, a number, or bytes."""
    arrow, base = column.type.arrow, _base(column)
    if base == "bit":
        given = text.encode("ascii") if text is not None else data
        return Fill(_bit(column, int(number or "0") if given is None else int.from_bytes(given, "big")))
    if base == "year":
        return Fill(_year(text, number))
    if pa.types.is_integer(arrow):
        return Fill(_integer(arrow, int.from_bytes(data, "big") if data is not None else Decimal(text or number or "")))
    if pa.types.is_decimal(arrow) and data is None:
        return Fill(_decimal(arrow, text or number or ""))
    if pa.types.is_floating(arrow) and data is None:
        return Fill(_to_float(arrow, text or number or ""))
    if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
        return _temporal(column, text, number)
    if base == "time":
        return Fill(_time(column, text, number))
    if base in ("enum", "set") and text is not None:
        return Fill(_labels(column, text, several=base == "set"))
    if base == "uuid" and text is not None:
        return Fill(str(uuid.UUID(text)))
    if base in ("inet4", "inet6") and text is not None:
        address = ipaddress.ip_address(text)
        return Fill(str(address) if address.version == 4 else inet6_text(address.packed))
    if base in ("char", "varchar"):
        return Fill(_text(column, text, number, data))
    if base in ("binary", "varbinary"):
        return Fill(_bytes(column, text, number, data))
    if text == "" and base.endswith(("text", "blob")):
        return _zero(column)  # MariaDB lists it for COMPRESSED columns without a DEFAULT
    raise _Unsure("cannot be told from its definition")


def _base(column: Column) -> str:
    return re.split(r"[ (]", column.type.native, maxsplit=1)[0]


def _size(column: Column) -> int | None:
    found = _SIZE.search(column.type.native.partition(" character set ")[0])
    return int(found[1]) if found else None


def _integer(arrow: pa.DataType, value: Decimal | int) -> int:
    whole = int(value)
    low = -(1 << (arrow.bit_width - 1)) if pa.types.is_signed_integer(arrow) else 0
    if whole != value or not low <= whole < low + (1 << arrow.bit_width):
        raise _Unsure("is none of the type's numbers")
    return whole


def _bit(column: Column, value: int) -> int | bool:
    if not 0 <= value < 1 << (_size(column) or 1):
        raise _Unsure("has more bits than the type")
    return bool(value) if pa.types.is_boolean(column.type.arrow) else value


def _year(text: str | None, number: str | None) -> int:
    """Two digits are of 1970 to 2069; a 0 is the year 0, but '0' is 2000."""
    value = int(text or number or "")
    if value < 100 and (number is None or value) and len(text or "") < 4:
        value += 2000 if value < 70 else 1900
    if value and not 1901 <= value <= 2155:
        raise _Unsure("is no year")
    return value


def _decimal(arrow: pa.DataType, given: str) -> Decimal:
    with localcontext() as context:
        context.prec = 200
        try:
            value = Decimal(given).quantize(Decimal(1).scaleb(-arrow.scale), ROUND_HALF_UP)
        except InvalidOperation as error:
            raise _Unsure("is no number") from error
        if abs(value) >= Decimal(10) ** (arrow.precision - arrow.scale):
            raise _Unsure("has more digits than the type")
        return value + 0  # no negative zero


def _to_float(arrow: pa.DataType, given: str) -> float:
    value = float(given)
    made = float(np.float32(value)) if arrow == pa.float32() else value
    if not np.isfinite(made) or (value and not made):
        raise _Unsure("is beyond the type's numbers")
    if arrow == pa.float32() and made != float(np.float32(f"{made:.6g}")):
        # Servers print it with six digits and read that again at every ALTER TABLE, whatever it changes.
        raise _Unsure("has more digits than the server keeps of a FLOAT")
    return made or 0.0


def _temporal(column: Column, text: str | None, number: str | None) -> Fill:
    arrow, digits = column.type.arrow, _size(column) or 0
    if number is not None:
        text = _write(number, date=pa.types.is_date(arrow))
    found = (_DATE if pa.types.is_date(arrow) else _DATETIME).fullmatch(text or "")
    if found is None:
        raise _Unsure("is written in a way that is not known here")
    year, month, day, hour, minute, second = (*(int(part or 0) for part in found.groups()[:6]), 0, 0, 0)[:6]
    nothing = not any((year, month, day, hour, minute, second))
    if pa.types.is_date(arrow):
        shown = f"{year:04d}-{month:02d}-{day:02d}"
        return Fill(None, shown) if not _exists(year, month, day) else Fill(dt.date(year, month, day))
    micros, fraction = _fraction(found[7], digits)
    shown = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}{fraction}"
    if nothing and not micros:
        return Fill(None, shown)
    if arrow.tz is not None:
        raise _Unsure("was given in the time zone of a session, which nothing tells")
    if hour > 23 or minute > 59 or second > 59:
        raise _Unsure("is no time of a day")
    if not _exists(year, month, day):
        return Fill(None, shown)
    return Fill(dt.datetime(year, month, day, hour, minute, second, micros))


def _write(number: str, *, date: bool) -> str:
    """20240131 and 20240131235959 are numbers for a point in time, and so is 0."""
    if re.fullmatch(r"0+", number):
        return "0000-00-00" if date else "0000-00-00 00:00:00"
    if re.fullmatch(r"\d{8}", number):
        return f"{number[:4]}-{number[4:6]}-{number[6:]}"
    if not date and re.fullmatch(r"\d{14}", number):
        return f"{number[:4]}-{number[4:6]}-{number[6:8]} {number[8:10]}:{number[10:12]}:{number[12:]}"
    raise _Unsure("is written in a way that is not known here")


def _exists(year: int, month: int, day: int) -> bool:
    try:
        dt.date(year, month, day)
    except ValueError:
        if month > 12 or day > 31:
            raise _Unsure("is no date") from None
        return False
    return True


def _fraction(given: str | None, digits: int) -> tuple[int, str]:
    """Microseconds, and how they are printed. Whether more digits are rounded or cut off depends on sql_mode."""
    given = given or ""
    if given[digits:].strip("0"):
        raise _Unsure("has a finer fraction than the type")
    shown = given[:digits].ljust(digits, "0")
    return int(shown.ljust(6, "0")), f".{shown}" if digits else ""


def _time(column: Column, text: str | None, number: str | None) -> str:
    if number is not None:
        found = re.fullmatch(r"(-?)(\d{1,7})", number)
        if found is None:
            raise _Unsure("is written in a way that is not known here")
        value = f"{int(found[2]):07d}"
        text = f"{found[1]}{value[:3]}:{value[3:5]}:{value[5:]}"
    parts = _TIME.fullmatch(text or "")
    if parts is None:
        raise _Unsure("is written in a way that is not known here")
    hour, minute, second = (int(parts[i] or 0) for i in (2, 3, 4))
    micros, fraction = _fraction(parts[5], _size(column) or 0)
    if hour > 838 or minute > 59 or second > 59 or ((hour, minute, second) == (838, 59, 59) and micros):
        raise _Unsure("is no TIME")
    sign = parts[1] if any((hour, minute, second, micros)) else ""
    return f"{sign}{hour:02d}:{minute:02d}:{second:02d}{fraction}"


def _labels(column: Column, text: str, *, several: bool) -> str:
    known = types.labels(column.type.native)
    wanted = [part for part in text.split(",") if part] if several else [text]
    chosen = {_label(known, part) for part in wanted}
    return ",".join(label for label in known if label in chosen) if several else chosen.pop()


def _label(known: tuple[str, ...], part: str) -> str:
    """Servers compare by collation; letters of another case are as far as it goes here."""
    found = [label for label in known if label == part.rstrip(" ")]
    found = found or [label for label in known if label.lower() == part.rstrip(" ").lower()]
    if len(found) != 1:
        raise _Unsure("is none of the labels")
    return found[0]


def _text(column: Column, text: str | None, number: str | None, data: bytes | None) -> str:
    charset, size, base = types.charset(column.type.native), _size(column), _base(column)
    if number is not None:
        if not re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", number):
            raise _Unsure("is a number, and how it is printed is not known here")
        text = number
    elif data is not None:
        if charset not in charsets.UTF8 and not charsets.is_single_byte(charset):
            raise _Unsure(f"is bytes of {charset}")
        text = charsets.decode(data, charset)
    assert text is not None
    if base == "char":
        text = text.rstrip(" ")
    if size is not None and len(text) > size:
        raise _Unsure("is longer than the type")
    return text


def _bytes(column: Column, text: str | None, number: str | None, data: bytes | None) -> bytes:
    """Of text only ASCII is sure: in what charset the rest was sent is not known any more."""
    if number is not None:
        raise _Unsure("is a number, and how it is printed is not known here")
    value = data if data is not None else (text or "").encode("ascii")
    size = _size(column)
    if size is not None and len(value) > size:
        raise _Unsure("is longer than the type")
    return value.ljust(size, b"\0") if _base(column) == "binary" and size is not None else value


def inet6_text(value: bytes) -> str:
    """As MariaDB prints it: the first longest run of zeros left out, even a single one; IPv4's range with its dots."""
    mapped = value[:12] == bytes(10) + b"\xff\xff"
    if mapped or (value[:12] == bytes(12) and any(value[12:14])):
        return ("::ffff:" if mapped else "::") + str(ipaddress.IPv4Address(value[12:]))
    groups = [f"{int.from_bytes(value[i : i + 2], 'big'):x}" for i in range(0, 16, 2)]
    found = [(size, -at) for at in range(8) for size in range(1, 9 - at) if groups[at : at + size] == ["0"] * size]
    if not found:
        return ":".join(groups)
    size, at = max(found)
    return ":".join(groups[:-at]) + "::" + ":".join(groups[size - at :])
