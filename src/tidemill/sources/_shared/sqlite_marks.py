"""Tables of which changes may be missing, because nothing recorded them for a while, or no record tells of a rename."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.contracts import Notice, Schemas
from tidemill.model.position import Position
from tidemill.sources._shared.incomplete import TableMarks, incomplete_notice
from tidemill.sources._shared.sqlite_names import full_name, is_selected, patterns_of

_MARKS = TableMarks("sqlite marks")


def note(schemas: Schemas, gaps: Mapping[str, str], since: Position) -> None:
    if gaps:
        known = _MARKS.read(schemas)
        for table, why in gaps.items():
            first = known[table][0] if table in known else str(since)
            known[table] = [first, why]
        _MARKS.write(schemas, known)


def notices(schemas: Schemas) -> tuple[Notice, ...]:
    return tuple(
        incomplete_notice(full_name(table), since, why) for table, (since, why) in sorted(_MARKS.read(schemas).items())
    )


def accept(schemas: Schemas, subject: str) -> tuple[Notice, ...]:
    """`subject` is a name as notices have it, or a name or pattern as in `tables`."""
    patterns = patterns_of([subject])
    left = {table: mark for table, mark in _MARKS.read(schemas).items() if not is_selected(patterns, table)}
    accepted = tuple(n for n in notices(schemas) if n.subject not in set(map(full_name, left)))
    if accepted:
        _MARKS.write(schemas, left)
    return accepted


def forget(schemas: Schemas) -> None:
    _MARKS.write(schemas, {})
