"""Tables of which changes may be missing, because nothing recorded them for a while, or no record tells of a rename.

A mark stays, over restarts, until an operator has copied the table and accepts it (`tidemill recover FILE --table`).
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from tidemill.contracts import Notice, Schemas
from tidemill.model.position import Position
from tidemill.sources._shared.incomplete import incomplete_notice
from tidemill.sources._shared.sqlite_names import full_name, is_selected, patterns_of

_NAME = "sqlite marks"


def note(schemas: Schemas, gaps: Mapping[str, str], since: Position) -> None:
    if gaps:
        known = _read(schemas)
        for table, why in gaps.items():
            first = known[table][0] if table in known else str(since)
            known[table] = [first, why]
        schemas.remember(_NAME, orjson.dumps(known))


def notices(schemas: Schemas) -> tuple[Notice, ...]:
    return tuple(
        incomplete_notice(full_name(table), since, why) for table, (since, why) in sorted(_read(schemas).items())
    )


def accept(schemas: Schemas, subject: str) -> tuple[Notice, ...]:
    """`subject` is a name as notices have it, or a name or pattern as in `tables`."""
    patterns = patterns_of([subject])
    left = {table: mark for table, mark in _read(schemas).items() if not is_selected(patterns, table)}
    accepted = tuple(n for n in notices(schemas) if n.subject not in set(map(full_name, left)))
    if accepted:
        schemas.remember(_NAME, orjson.dumps(left) if left else None)
    return accepted


def forget(schemas: Schemas) -> None:
    schemas.remember(_NAME, None)


def _read(schemas: Schemas) -> dict[str, list[str]]:
    document = schemas.recall(_NAME)
    found: dict[str, list[str]] = orjson.loads(document) if document else {}
    return found
