"""The document of a DDL event, which docs/events.md describes: the statement, what it changed, before and after.

Sources whose statements name columns make `changes` of their own; where only two structures are known, these are what
differs between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from tidemill.model.table import Column, Table
from tidemill.schema.diff import Diff, diff


def write_document(
    text: str | None,
    kind: str,
    changes: list[dict[str, Any]] | None,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> str:
    """The block's `ddl` column. `text` is None where nobody knows the statement, `before` and `after` as
    `describe_structure` makes them; None where there was no table, or it is not known how it was."""
    document = {"text": text, "kind": kind, "changes": changes, "before": before, "after": after}
    return orjson.dumps(document).decode()


def describe_structure(columns: Iterable[tuple[str, Mapping[str, Any]]], key: Sequence[str]) -> dict[str, Any]:
    """Columns by name, each with what the source tells of it."""
    return {"columns": [{"name": name, **facts} for name, facts in columns], "key": list(key)}


def structure_of(table: Table | None) -> dict[str, Any] | None:
    return None if table is None else describe_structure([(c.name, _describe(c)) for c in table.columns], table.key)


def changes_between(before: Table | None, after: Table) -> list[dict[str, Any]]:
    """What differs, as far as structures tell: no defaults, indexes or comments."""
    found = diff(before, after) if before is not None else Diff(added=after.columns)
    by_name = {c.name: c for c in before.columns} if before is not None else {}
    renamed = {new.name: was for was, new in found.renamed}
    added = {c.name for c in found.added} | {new.name for _, new in found.replaced}
    gone = [*found.dropped, *(was for was, _ in found.replaced)]
    changes: list[dict[str, Any]] = []
    if before is not None and before.full_name != after.full_name:
        changes.append({"change": "rename_table", "from": before.full_name, "to": after.full_name})
    changes += [{"change": "drop", "column": c.name, "type": c.type.native} for c in gone]
    previous = ""
    for column in after.columns:
        if column.name in added:
            place: dict[str, Any] = {"after": previous} if previous else {"first": True}
            changes.append({"change": "add", "column": column.name, **_describe(column), **place})
        else:
            was = renamed.get(column.name) or by_name[column.name]
            if was.name != column.name:
                changes.append({"change": "rename", "column": column.name, "from": was.name})
            if _describe(was) != _describe(column):
                changes.append(
                    {"change": "modify", "column": column.name, "from": _describe(was), "to": _describe(column)}
                )
        previous = column.name
    if before is not None:
        names = {was.name: now for now, was in renamed.items()}
        if tuple(names.get(name, name) for name in before.key) != after.key:
            changes.append({"change": "key", "from": list(before.key), "to": list(after.key)})
    return changes


def _describe(column: Column) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": column.type.native, "nullable": column.nullable}
    return {**shown, "generated": True} if column.generated else shown
