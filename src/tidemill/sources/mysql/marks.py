"""Captured tables that have another's name: rows from before a RENAME TABLE are under the old name at the destinations.

A mark stays, over restarts, until an operator has copied the table and accepts it (`tidemill recover FILE --table`).
"""

from __future__ import annotations

import orjson

from tidemill.contracts import Notice, Schemas
from tidemill.model.position import Position
from tidemill.sources._shared.incomplete import incomplete_notice

_NAME = "mysql marks"


def note(schemas: Schemas, table: str, was: str, position: Position) -> None:
    """`table` was called `was` until `position`. The same statement may be read again."""
    known = _read(schemas)
    known[table] = [str(position), was]
    schemas.remember(_NAME, orjson.dumps(known))


def notices(schemas: Schemas) -> tuple[Notice, ...]:
    return tuple(
        incomplete_notice(
            table, since,
            f"it was renamed from {was} there. Rows that it had by then, destinations have under that name or not at"
            " all, and those that they have under this name may be another table's",
        )
        for table, (since, was) in sorted(_read(schemas).items())
    )  # fmt: skip


def accept(schemas: Schemas, subject: str) -> tuple[Notice, ...]:
    """`subject` is a name as notices have it."""
    accepted = tuple(notice for notice in notices(schemas) if notice.subject == subject)
    if accepted:
        left = {table: mark for table, mark in _read(schemas).items() if table != subject}
        schemas.remember(_NAME, orjson.dumps(left) if left else None)
    return accepted


def forget(schemas: Schemas) -> None:
    schemas.remember(_NAME, None)


def _read(schemas: Schemas) -> dict[str, list[str]]:
    document = schemas.recall(_NAME)
    found: dict[str, list[str]] = orjson.loads(document) if document else {}
    return found
