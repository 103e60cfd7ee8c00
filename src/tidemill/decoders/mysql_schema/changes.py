"""What a DDL event tells about its table: docs/events.md describes the document."""

from __future__ import annotations

import re
from typing import Any

from tidemill.decoders._shared.mysql.session import SqlMode
from tidemill.decoders.mysql_schema.catalog import CatalogColumn, CatalogTable
from tidemill.decoders.mysql_schema.history import Effect, State, Unknown
from tidemill.decoders.mysql_schema.temporary import TableKey
from tidemill.decoders.mysql_schema.tokens import quote
from tidemill.schema.ddl_document import describe_structure


def safe_text(text: str, mode: SqlMode) -> str:
    """Without the values of options that are nobody's business."""
    single, double = quote("'", mode), quote('"', mode)
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
    found += _columns(effect.before, effect.after)
    for aside in effect.asides:
        shown = {"to": aside.text} if aside.change == "comment" else {"index": aside.text or None}
        found.append({"change": aside.change, **shown})
    return found


def describe_table(state: State | None) -> dict[str, Any] | None:
    """`before` or `after` of the document; None where it was not there, or is not known."""
    if not isinstance(state, CatalogTable):
        return None
    return describe_structure([(c.name, _describe(c)) for c in state.columns], state.key)


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
            found.append({"change": "add", "column": name, **_describe(column), **place})
        elif was.name != name:
            found.append({"change": "rename", "column": name, "from": was.name})
        if was is not None and _describe(was) != _describe(column):
            found.append({"change": "modify", "column": name, "from": _describe(was), "to": _describe(column)})
        if was is not None and None not in (was.default, column.default) and was.default != column.default:
            sides = {"from": was.default or None, "to": column.default or None}
            found.append({"change": "default", "column": name, **sides})
        previous = name
    then = [name for name in before if name in kept]
    now = [origin[name] for name in after if origin[name] in before]
    if then != now:
        found.append({"change": "order", "columns": list(after)})
    if old is not None and tuple(origin.get(name, name) for name in new.key) != old.key:
        found.append({"change": "key", "from": list(old.key), "to": list(new.key)})
    return found


def _describe(column: CatalogColumn) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": column.type, "nullable": column.nullable}
    if column.charset:
        shown["charset"] = column.charset
    if column.generated:
        shown["generated"] = True
    return shown


def _name(key: TableKey) -> str:
    return f"{key[0]}.{key[1]}"
