"""A case, and the words in which its tables and events are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.decoded import Row

BOTH = ("mysql", "mariadb")


@dataclass(frozen=True)
class Case:
    """A statement that begins with `[b] ` runs in a second session. `setup` runs before the recording, `undo` after it.

    `known` has columns (name, type, charset) of tables that the binlog does not describe. `ddls` are the statements, by
    their beginning, that concern a captured table, and whether they empty it. `filled` are
    defaults of a table's columns (`defaults`). `begun`: what the decoder starts from.
    """

    name: str
    setup: Sequence[str]
    sql: Sequence[str]
    expected: Sequence[Row]
    servers: Sequence[str] = BOTH
    known: Mapping[str, Sequence[tuple[str, str, str]]] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ddls: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    filled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    undo: Sequence[str] = ()
    barrier: bool = False
    annotate: bool = False
    by_gtid: bool = True


def insert(tx: int, table: str, after: Row, **more: Any) -> Row:
    return {"tx": tx, "op": "insert", "table": f"golden.{table}", "after": after, **more}


def update(tx: int, table: str, after: Row, **more: Any) -> Row:
    return {"tx": tx, "op": "update", "table": f"golden.{table}", "after": after, **more}


def delete(tx: int, table: str, **image: Any) -> Row:
    return {"tx": tx, "op": "delete", "table": f"golden.{table}", **image}


def ddl(tx: int, table: str, text: str) -> Row:
    return {"tx": tx, "op": "ddl", "table": f"golden.{table}", "ddl": f'{{"text": "{text}"}}'}


T = "CREATE TABLE t (id int PRIMARY KEY, v varchar(20))"
HAVE_ONE = "INSERT INTO t VALUES (1, 'a')"
MINIMAL = "SET SESSION binlog_row_image = MINIMAL"
NOBLOB = "SET SESSION binlog_row_image = NOBLOB"


def t(id_: int, v: str | None = None) -> Row:
    return {"id": id_, "v": v}
