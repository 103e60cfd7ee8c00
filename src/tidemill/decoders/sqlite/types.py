"""Types of SQLite and Turso: what a declared type becomes in Arrow and in JSON. The type page is made of it.

A column's declared type only says which storage class its values prefer (https://sqlite.org/datatype3.html): any value
may stand in any column of a table that is not STRICT. A value of another class than the column's is kept as text
(`odd`), so that nothing is lost and an ordinary column stays typed.
"""

from __future__ import annotations

import enum
import re

import pyarrow as pa

from tidemill.model.types import DataType, JsonForm


class SqliteKind(enum.Enum):
    """What a column is expected to hold."""

    INTEGER = "integer"
    REAL = "real"
    BOOLEAN = "boolean"
    TEXT = "text"
    BLOB = "blob"
    ANY = "any"


_ARROW = {
    SqliteKind.INTEGER: (pa.int64(), JsonForm.NUMBER),
    SqliteKind.REAL: (pa.float64(), JsonForm.NUMBER),
    SqliteKind.BOOLEAN: (pa.bool_(), JsonForm.BOOL),
    SqliteKind.TEXT: (pa.string(), JsonForm.STRING),
    SqliteKind.BLOB: (pa.binary(), JsonForm.BASE64),
    SqliteKind.ANY: (pa.string(), JsonForm.STRING),
}

#: For the type page: (declared type, affinity, what it is expected to hold, remark).
BUILT_IN: tuple[tuple[str, str, SqliteKind, str], ...] = (
    ("INTEGER", "INTEGER", SqliteKind.INTEGER, "all 64 bits; `INTEGER PRIMARY KEY` is the rowid"),
    ("INT, BIGINT, TINYINT, …", "INTEGER", SqliteKind.INTEGER, "every name with INT in it"),
    ("BOOLEAN, BOOL", "NUMERIC", SqliteKind.BOOLEAN, "0 and 1; other numbers as text"),
    ("REAL, DOUBLE, FLOAT", "REAL", SqliteKind.REAL, "with infinities; SQLite stores NaN as NULL"),
    ("NUMERIC, DECIMAL(p,s)", "NUMERIC", SqliteKind.REAL,
     "SQLite keeps them as integers or doubles; an integer that a double cannot hold exactly as text"),
    ("TEXT, CLOB, VARCHAR(n), NCHAR(n)", "TEXT", SqliteKind.TEXT,
     "UTF-16 databases too; bytes that are no UTF-8 as text"),
    ("BLOB", "BLOB", SqliteKind.BLOB, ""),
    ("DATE, DATETIME, TIMESTAMP, JSON, any other name", "NUMERIC", SqliteKind.ANY,
     "text is usual there; a number is as text too, but told apart: it stands in `odd`"),
    ("none, ANY", "BLOB", SqliteKind.ANY, "likewise"),
)  # fmt: skip

RULES: tuple[tuple[str, str], ...] = (
    ("integer", "its digits: `42`"),
    ("real", "the shortest digits that give the same double: `0.1`; `Infinity`, `-Infinity`"),
    ("text", "itself; in quotes, `'42'` or `'X''00'''`, where it looks like one of the other forms"),
    ("blob", "`X'00FF'`"),
    ("text that is no UTF-8", "`CAST(X'C328' AS TEXT)`"),
)


def kind_of(declared: str) -> SqliteKind:
    """By SQLite's rules of affinity (datatype3, section 3.1), and what is usual where these say NUMERIC.

    >>> kind_of("unsigned big int"), kind_of("character varying(20)"), kind_of("decimal(10,2)"), kind_of("datetime")
    (<SqliteKind.INTEGER: 'integer'>, <SqliteKind.TEXT: 'text'>, <SqliteKind.REAL: 'real'>, <SqliteKind.ANY: 'any'>)
    """
    name = declared.upper()
    if "INT" in name:
        return SqliteKind.INTEGER
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return SqliteKind.TEXT
    if "BLOB" in name:
        return SqliteKind.BLOB
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return SqliteKind.REAL
    base = re.sub(r"\s*\(.*", "", name).strip()
    if base in ("BOOLEAN", "BOOL"):
        return SqliteKind.BOOLEAN
    return SqliteKind.REAL if base in ("NUMERIC", "DECIMAL", "NUMBER") else SqliteKind.ANY


def data_type(declared: str) -> DataType:
    """The name is in capitals: to SQLite they are the same, and no other source's types are written so."""
    arrow, form = _ARROW[kind_of(declared)]
    return DataType(" ".join(declared.upper().split()) or "ANY", arrow, form)
