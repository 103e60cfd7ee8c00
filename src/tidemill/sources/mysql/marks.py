"""Captured tables that have another's name: destinations have rows from before a RENAME TABLE under the old one."""

from __future__ import annotations

from tidemill.contracts import Notice, Schemas
from tidemill.model.position import Position
from tidemill.sources._shared.incomplete import TableMarks, incomplete_notice

_MARKS = TableMarks("mysql marks")


def note(schemas: Schemas, table: str, was: str, position: Position) -> None:
    """`table` was called `was` until `position`. The same statement may be read again."""
    known = _MARKS.read(schemas)
    known[table] = [str(position), was]
    _MARKS.write(schemas, known)


def notices(schemas: Schemas) -> tuple[Notice, ...]:
    return tuple(
        incomplete_notice(
            table, since,
            f"it was renamed from {was} there. Rows that it had by then, destinations have under that name or not at"
            " all, and those that they have under this name may be another table's",
        )
        for table, (since, was) in sorted(_MARKS.read(schemas).items())
    )  # fmt: skip


def accept(schemas: Schemas, subject: str) -> tuple[Notice, ...]:
    """`subject` is a name as notices have it."""
    accepted = tuple(notice for notice in notices(schemas) if notice.subject == subject)
    if accepted:
        left = {table: mark for table, mark in _MARKS.read(schemas).items() if table != subject}
        _MARKS.write(schemas, left)
    return accepted


def forget(schemas: Schemas) -> None:
    _MARKS.write(schemas, {})
