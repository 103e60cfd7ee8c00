"""Columns of the target that would take a value and keep another: PostgreSQL rounds a number to the column's scale and
a time to its precision, cuts spaces off, and reads a date out of a timestamp, all without a word.

Where the type of a column leaves that possible, the source's own text goes into the temporary table too, and what the
column made of it is compared with it before anything is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.sinks.postgres.types import base, digits, modifier, reaches, widens

if TYPE_CHECKING:
    from psycopg import sql

_WHOLE = ("smallint", "integer", "bigint")
_FLOATS = ("real", "double precision")
_TIMESTAMPS = ("timestamp without time zone", "timestamp with time zone")
_TIMES = ("date", *_TIMESTAMPS, "time without time zone", "time with time zone", "interval")
_SHORT = ("character varying", "character", "name", '"char"')  # texts that may be cut


@dataclass(frozen=True, slots=True)
class Doubt:
    """A column, by its number, and the type that values are compared in. With a `limit`, only texts that are longer
    and end with a space are in doubt: others are kept, or refused by the server."""

    number: int
    kind: str
    compared: str
    limit: int | None = None

    def concerns(self, strings: pa.Array) -> bool:
        if self.limit is None:
            return True
        long = strings.filter(pc.greater(pc.binary_length(strings), self.limit))
        return bool(pc.any(pc.ends_with(long, b" ")).as_py())

    @property
    def column(self) -> str:
        """Of the temporary table: the source's text."""
        return f"tidemill exact {self.number}"


def doubt(number: int, wanted: str, kind: str) -> Doubt | None:
    """`wanted` is the type that holds every value of the source, `kind` the one that the target has."""
    compared = comparison_type(wanted, kind)
    if not compared:
        return None
    limits = {"character varying": modifier(kind), "character": 0}
    return Doubt(number, kind, compared, limits.get(base(kind)) if compared in ("text", "bpchar") else None)


def comparison_type(wanted: str, kind: str) -> str:
    """The type to compare in; empty if the target keeps every value as it is or refuses it.

    >>> compared_as("numeric(12,4)", "numeric(10,2)")
    'numeric'
    """
    if wanted.endswith("[]") and kind.endswith("[]"):
        element = comparison_type(wanted[:-2], kind[:-2])
        return f"{element}[]" if element else ""
    before, after = base(wanted), base(kind)
    if widens(wanted, kind) or after in ("text", "boolean") or (after in _SHORT and kind == "character varying"):
        return ""
    if after in _SHORT:
        return "bpchar" if before == "character" and after in _SHORT[:2] else "text"
    if before in ("text", "character varying"):
        # Any reading of a text is the target's affair, but not what the column then cuts off.
        if after == "date":
            return _TIMESTAMPS[0]
        if after.startswith("interval"):
            return "interval" if kind != "interval" else ""
        return after if after in ("numeric", *_TIMES) and kind != after else ""
    if before in (*_WHOLE, *_FLOATS, "numeric"):
        return _numbers(wanted, kind)
    if before in _TIMES or before.startswith("interval"):
        return _times(wanted, kind)
    return ""


def _numbers(wanted: str, kind: str) -> str:
    before, after = base(wanted), base(kind)
    if after == "numeric":
        if kind == after:
            return ""
        places = 0 if before in _WHOLE else digits(wanted)[1]
        return "" if before not in _FLOATS and places <= digits(kind)[1] else "numeric"
    if after in _FLOATS:
        if before in _FLOATS:
            return before
        fits = before == "smallint" or (before == "integer" and after == "double precision")
        return "" if fits else "numeric"
    return "numeric" if after == "money" else ""  # what is left takes no fraction


def _times(wanted: str, kind: str) -> str:
    before, after = base(wanted), base(kind)
    if before == "date" and after in _TIMESTAMPS:
        return ""
    if before in _TIMESTAMPS and after in _TIMESTAMPS:
        # The session's time zone is UTC, so either is read as the other's.
        return "" if reaches(wanted, kind) else before
    if after in _TIMES or after.startswith("interval"):
        return "interval" if before.startswith("interval") else before
    return ""


def count_lost(doubts: Sequence[Doubt], names: Sequence[str], stage: sql.Identifier) -> sql.Composed:
    """Rows of the temporary table that would become others: their number, and whether it is each column's fault."""
    from psycopg import sql

    tests = [
        sql.SQL("{}{}::{} IS DISTINCT FROM {}::{}").format(
            # money prints a currency, which no number has
            sql.Identifier(name), sql.SQL("" if one.kind == "money" else "::text"), sql.SQL(one.compared),
            sql.Identifier(one.column), sql.SQL(one.compared),
        )
        for one, name in zip(doubts, names, strict=True)
    ]  # fmt: skip
    return sql.SQL('SELECT "tidemill row", {} FROM {} WHERE {} ORDER BY 1').format(
        sql.SQL(", ").join(tests), stage, sql.SQL(" OR ").join(tests)
    )
