"""What a table of MySQL or MariaDB looks like, in the server's own words: the unit of the schema history.

`sources/` fills it from information_schema, `ddl` changes it statement by statement, `TableHistory` keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from tidemill.decoders._shared.mysql.place import BinlogPlace


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """One row of information_schema.COLUMNS.

    `type` is COLUMN_TYPE as it stands there (`int(10) unsigned`, `enum('a','b')`); `charset` is CHARACTER_SET_NAME,
    empty for what has none. `generated` means GENERATION_EXPRESSION is not empty, `invisible` that EXTRA says so.
    `default` is in the form of `defaults`; columns are not told apart by it, since one value has several forms.
    `initial`, in the same form, is what the rows that were there got when a statement added the column; None where no
    statement did, or that cannot be told.
    `row_end`: it says since when a row is an old version (MariaDB's system versioning); `implicit`: it is one of the
    two columns of that which the server adds by itself after all others and does not list.
    """

    name: str
    type: str
    charset: str = ""
    nullable: bool = True
    generated: bool = False
    invisible: bool = False
    default: str | None = field(default=None, compare=False)
    row_end: bool = field(default=False, compare=False)
    implicit: bool = field(default=False, compare=False)
    initial: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table with its columns in order of ORDINAL_POSITION.

    `key` are the primary key's columns in their order in the key. `charset` is the table's default (from
    TABLE_COLLATION), which a later ADD COLUMN takes. The source leaves out the last two: `like` is the table this one
    was made after, and `renamed` the (old, new) names of columns since then or since the statement before.
    """

    database: str
    name: str
    columns: tuple[CatalogColumn, ...]
    key: tuple[str, ...] = ()
    charset: str = ""
    like: str = ""
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes | str) -> CatalogTable:
        doc: dict[str, Any] = orjson.loads(text)
        return cls(
            doc["database"], doc["name"], tuple(CatalogColumn(**column) for column in doc["columns"]),
            tuple(doc["key"]), doc["charset"], doc["like"], tuple((old, new) for old, new in doc["renamed"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CatalogDatabase:
    """Databases have a default charset, which a CREATE TABLE without one takes."""

    name: str
    charset: str = ""


@dataclass(frozen=True, slots=True)
class ServerCatalog:
    """What the server lists now: all of its tables, not only the captured ones, since any can be renamed to one.

    `at` is the end of the binlog, asked after the tables were read. `since` are (database, text) of the statements
    between the place where capture begins and `at`, or None where that is much to read and nothing but defaults depends
    on it. `named`: row metadata is FULL, so that events describe their tables themselves, except for defaults.
    """

    databases: Sequence[CatalogDatabase]
    tables: Sequence[CatalogTable]
    at: BinlogPlace
    since: Sequence[tuple[str, str]] | None = ()
    named: bool = False
