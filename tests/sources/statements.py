"""What a PostgreSQL capture tells of changed tables, among the rows around them."""

from __future__ import annotations

import itertools
from typing import Any

import orjson

from tests.sources.support import execute
from tests.support.capturing import Running, eventually

DDL = 6
_ENDS = itertools.count()


def caught_up(dsn: str, running: Running) -> list[dict[str, Any]]:
    """All events up to a message that is written now."""
    prefix = f"test.end.{next(_ENDS)}"
    execute(dsn, f"SELECT pg_logical_emit_message(true, '{prefix}', '')")
    eventually(lambda: any((row["after"] or {}).get("prefix") == prefix for row in running.rows(last=1)), running)
    return [row for row in running.rows() if row["table"] != "message"]


def shown(rows: list[dict[str, Any]]) -> list[Any]:
    """Rows as tuples of their values, statements as (table, kind, changes)."""
    found: list[Any] = []
    for row in rows:
        if row["op"] == DDL:
            document = orjson.loads(row["ddl"])
            found.append((row["table"].removeprefix("public."), document["kind"], document["changes"]))
        else:
            found.append(row["after"])
    return found
