"""By what a table is cut into chunks, and the SQL of a range of keys. Pure; `snapshot` runs it.

A bound is one text per key column, with which a literal of SQL can be made that compares under the column's own rules:

    integers, DECIMAL, YEAR, BIT   the number
    FLOAT, DOUBLE                  the number, with all of its digits
    ENUM, SET                      the number: that is what the server orders them by
    dates and times                as the server prints them, TIMESTAMP in UTC
    text                           the bytes in the column's character set, in hexadecimal; compared in its collation
    bytes                          in hexadecimal
    UUID, INET4, INET6             as the server prints them

A comparison of rows, (a, b) > (1, 2), reads the whole index at MySQL. So ranges are written out by column.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from tidemill.decoders.mysql_schema import labels
from tidemill.errors import SourceError
from tidemill.model.snapshot import Bound, Chunk
from tidemill.model.table import Column

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?", re.IGNORECASE)
_TEMPORAL = re.compile(r"-?[0-9]+([-:. ][0-9]+)*")
_HEXADECIMAL = re.compile(r"([0-9a-f]{2})*", re.IGNORECASE)
_ADDRESS = re.compile(r"[0-9a-f:.-]*", re.IGNORECASE)
_ADDRESSES = ("uuid", "inet4", "inet6")
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year")
_STRINGS = ("char", "varchar", "binary", "varbinary", "tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob",
            "mediumblob", "longblob")  # fmt: skip
_TEMPORALS = ("date", "datetime", "timestamp", "time")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key that chunks are cut by. `charset` and `collation` are of its text, else empty."""

    column: Column
    charset: str = ""
    collation: str = ""

    @property
    def name(self) -> str:
        return quoted_name(self.column.name)

    @property
    def base(self) -> str:
        return re.split(r"[ (]", self.column.type.native, maxsplit=1)[0]

    @property
    def shown(self) -> str:
        """The expression that gives the text of a bound."""
        match self.base:
            case "enum" | "set" | "bit":
                return f"CAST(CAST({self.name} AS UNSIGNED) AS CHAR)"
            case "float" | "double":
                return f"{self.name} + 0e0"
            case base if base in _INTEGERS + _TEMPORALS + _ADDRESSES:
                return f"CAST({self.name} AS CHAR)"
        return f"HEX({self.name})"

    def bound_text(self, value: object) -> str:
        """Of what `shown` gave. Python prints every digit that tells a float from its neighbours."""
        return repr(value) if isinstance(value, float) else str(value)

    def literal(self, text: str) -> str:
        """Of a bound's text. `SourceError` for one that is none: it is kept in the state, which others can write."""
        base = self.base
        if base in _TEMPORALS and _TEMPORAL.fullmatch(text):
            return f"'{text}'"
        if base in _ADDRESSES and _ADDRESS.fullmatch(text):
            return f"'{text}'"
        if base in ("float", "double") and _NUMBER.fullmatch(text):
            return text if "e" in text.lower() else f"{text}e0"
        if base in (*_INTEGERS, "enum", "set", "bit") and _NUMBER.fullmatch(text):
            return text
        if base in _STRINGS and _HEXADECIMAL.fullmatch(text):
            return f"_{self.charset} X'{text}' COLLATE {self.collation}" if self.charset else f"X'{text}'"
        raise SourceError(f'"{text[:80]}" is no bound of a key of type {self.column.type.native}')

    def equals(self, text: str) -> str:
        """The condition of a value as Arrow prints it. What is no label of an ENUM is 0, and reads as the empty one."""
        if self.base == "enum" and not text:
            return f"{self.name} IN (0, {self.point(text)})"
        return f"{self.name} = {self.point(text)}"

    def point(self, text: str) -> str:
        """The literal of a value as Arrow prints it: text in UTF-8, a label, bytes in hexadecimal."""
        match self.base:
            case "enum":
                known = labels(self.column.type.native)
                return str(known.index(text) + 1 if text in known else 0)
            case "set":
                known, chosen = labels(self.column.type.native), set(text.split(",")) if text else set()
                return str(sum(1 << i for i, label in enumerate(known) if label in chosen))
            case "bit":
                return {"true": "1", "false": "0"}.get(text.lower()) or self.literal(text)
            case "decimal":
                return self.literal(format(Decimal(text), "f"))
            case "float":  # compared as a double: 0.1 is 0.10000000149011612 there
                return self.literal(repr(struct.unpack("f", struct.pack("f", float(text)))[0]))
            case base if base in _TEMPORALS:
                return self.literal(text.replace("T", " ").removesuffix("Z").removesuffix("+00:00"))
        if self.charset:
            return f"CONVERT(_utf8mb4 X'{text.encode().hex()}' USING {self.charset}) COLLATE {self.collation}"
        return self.literal(text)


def quoted_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def condition(key: Sequence[KeyColumn], chunk: Chunk) -> str:
    """What rows of a chunk fulfil; empty for all."""
    if chunk.points:
        found = (
            " AND ".join(f"{part.name} = {part.point(text)}" for part, text in zip(key, point, strict=True))
            for point in chunk.points
        )
        return _all([" OR ".join(f"({one})" for one in found), chunk.where])
    return _all([after(key, chunk.lower), _up_to(key, chunk.upper), chunk.where])


def after(key: Sequence[KeyColumn], bound: Bound | None) -> str:
    """`bound` < key. The first column's own condition is implied, but the servers find a range by it."""
    if bound is None:
        return ""
    literals = [part.literal(text) for part, text in zip(key, bound, strict=True)]
    if len(key) == 1:
        return f"{key[0].name} > {literals[0]}"
    return f"{key[0].name} >= {literals[0]} AND ({_by_column(key, literals, '>', '>')})"


def _up_to(key: Sequence[KeyColumn], bound: Bound | None) -> str:
    """key <= `bound`."""
    if bound is None:
        return ""
    literals = [part.literal(text) for part, text in zip(key, bound, strict=True)]
    if len(key) == 1:
        return f"{key[0].name} <= {literals[0]}"
    return f"{key[0].name} <= {literals[0]} AND ({_by_column(key, literals, '<', '<=')})"


def _by_column(key: Sequence[KeyColumn], literals: Sequence[str], strictly: str, at_last: str) -> str:
    """a > 1 OR (a = 1 AND b > 2) OR …"""
    found = []
    for n, part in enumerate(key):
        equal = [f"{key[i].name} = {literals[i]}" for i in range(n)]
        sign = at_last if n == len(key) - 1 else strictly
        found.append(" AND ".join([*equal, f"{part.name} {sign} {literals[n]}"]))
    return " OR ".join(f"({one})" for one in found)


def _all(conditions: Sequence[str]) -> str:
    return " AND ".join(f"({one})" for one in conditions if one)
