"""What a DDL event tells about its table: docs/events.md describes the document."""

from __future__ import annotations

import re
from typing import Any

from tidemill.decoders.mysql_schema.catalog import CatalogColumn, CatalogTable
from tidemill.decoders.mysql_schema.history import Effect, Unknown
from tidemill.decoders.mysql_schema.session import SqlMode
from tidemill.decoders.mysql_schema.temporary import TableKey
from tidemill.decoders.mysql_schema.tokens import quoted


def safe_text(text: str, mode: SqlMode) -> str:
    """Without the values of options that are nobody's business."""
    single, double = quoted("'", mode), quoted('"', mode)
    secret = rf"\b((?:CONNECTION|PASSWORD)\s*=?\s*)({single}|{double})"
    return re.sub(secret, r"\1'***'", text, flags=re.IGNORECASE | re.DOTALL)


def changes(effect: Effect) -> list[dict[str, Any]] | None:
    """None where it is not known what changed."""
    if isinstance(effect.after, Unknown):
        return None
    found: list[dict[str, Any]] = []
    if effect.source is not None:
        found.append({"change": "rename_table", "from": _name(effect.source), "to": _name(effect.key)})
    elif effect.target is not None:
        found.append({"change": "rename_table", "from": _name(effect.key), "to": _name(effect.target)})
    if effect.after is None or effect.kind == "truncate" or isinstance(effect.before, Unknown):
        return found
    return found + _columns(effect.before, effect.after)


def _columns(old: CatalogTable | None, new: CatalogTable) -> list[dict[str, Any]]:
    before = {c.name: c for c in old.columns} if old else {}
    after = {c.name: c for c in new.columns}
    renames = {now: was for was, now in new.renamed if was in before and now in after}
    origin = {name: renames.get(name, "" if name in renames.values() else name) for name in after}
    found: list[dict[str, Any]] = []
    kept = set(origin.values())
    found += [{"change": "drop", "column": name, "type": c.type} for name, c in before.items() if name not in kept]
    previous = ""
    for name, column in after.items():
        was = before.get(origin[name])
        if was is None:
            place = {"after": previous} if previous else {"first": True}
            found.append({"change": "add", "column": name, **_described(column), **place})
        elif was.name != name:
            found.append({"change": "rename", "column": name, "from": was.name})
        if was is not None and _described(was) != _described(column):
            found.append({"change": "modify", "column": name, "from": _described(was), "to": _described(column)})
        previous = name
    then = [name for name in before if name in kept]
    now = [origin[name] for name in after if origin[name] in before]
    if then != now:
        found.append({"change": "order", "columns": list(after)})
    if old is not None and tuple(origin.get(name, name) for name in new.key) != old.key:
        found.append({"change": "key", "from": list(old.key), "to": list(new.key)})
    return found


def _described(column: CatalogColumn) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": column.type, "nullable": column.nullable}
    if column.charset:
        shown["charset"] = column.charset
    if column.generated:
        shown["generated"] = True
    return shown


def _name(key: TableKey) -> str:
    return f"{key[0]}.{key[1]}"
