"""A profile as JSON Schema 2020-12: of the row in an event's `after`, as the native envelope shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.model.types import JsonForm
from tidemill.schema.sensing import shapes
from tidemill.schema.sensing.profile import ColumnProfile, TableProfile

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_FORMATS = ("date", "date-time", "uuid", "email", "uri")
_TYPES = {
    "integer": "integer", JsonForm.NUMBER: "number", JsonForm.BOOL: "boolean", JsonForm.STRING: "string",
    JsonForm.BASE64: "string", JsonForm.ARRAY: "array",
}  # fmt: skip


def json_schema(profile: TableProfile, version: int = 1) -> dict[str, Any]:
    """Every event that was looked at is valid against it. A column is required when each of them had it."""
    properties = {name: _column(column) for name, column in profile.columns.items()}
    required = [name for name, column in profile.columns.items() if column.values == profile.sampled]
    return {
        "$schema": DIALECT, "$id": f"urn:tidemill:{profile.name}:{version}", "title": profile.name, "type": "object",
        "properties": properties, "required": required,
    }  # fmt: skip


def _column(column: ColumnProfile) -> dict[str, Any]:
    if JsonForm.RAW in column.forms:
        return _document(column) if len(column.forms) == 1 else {}
    types = [_TYPES[form] for form in sorted(column.forms)]
    if "number" in types or column.odd:
        types.append("string")  # NaN, infinities, and what the type cannot hold
    if column.nulls.count or column.type.nullable:
        types.append("null")
    found: dict[str, Any] = {"type": _one_or_many(types)}
    only = next(iter(column.forms)) if len(column.forms) == 1 and not column.odd else ""
    if column.forms == {JsonForm.BASE64}:
        found["contentEncoding"] = "base64"
    # What was asked for later says nothing of the values before.
    formats = [name for name in _FORMATS if name in (column.formats or ()) and "formats" in column.whole]
    if formats and only == JsonForm.STRING:
        found["format"] = formats[0]
    if column.enumeration and "enumerations" in column.whole and only == JsonForm.STRING:
        found["enum"] = sorted(column.enumeration) + ([None] if "null" in types else [])
    if column.range and "ranges" in column.whole and only == "integer":
        low, high = column.range
        found |= {"minimum": int(low[0]), "maximum": int(high[0])}
    return found


def _document(column: ColumnProfile) -> dict[str, Any]:
    """Of a JSON column. What the parser refused may be anything; so may what was not looked into."""
    if not column.documents or (shapes.ROOT, "unreadable") in column.paths or column.odd:
        return {}
    if column.documents < column.values - column.nulls.count:
        return {}  # some were not looked into
    kinds: dict[str, dict[str, int]] = {}
    for (path, kind), count in column.paths.items():
        kinds.setdefault(path, {})[kind] = count
    below: dict[str, list[str]] = {}
    for path in kinds:
        if path:
            below.setdefault(shapes.parent_of(path), []).append(path)
    found = _node(shapes.ROOT, kinds, below)
    if column.nulls.count or column.type.nullable:
        found["type"] = _one_or_many([*_list(found["type"]), "null"])
    return found


def _node(path: str, kinds: Mapping[str, Mapping[str, int]], below: Mapping[str, list[str]]) -> dict[str, Any]:
    types = sorted(kinds[path])
    if "number" in types and "integer" in types:
        types.remove("integer")
    found: dict[str, Any] = {"type": _one_or_many(types)}
    children = sorted(below.get(path, ()))
    named: dict[str, Any] = {}
    for child in children:
        key = child[len(path) + 1 :]
        inner = _node(child, kinds, below)
        if key == shapes.ELEMENT:
            found["items"] = inner
        elif key == shapes.VALUE:
            found["additionalProperties"] = inner
        else:
            named[shapes.unescape(key)] = inner
            objects = kinds[path].get("object", 0)
            if shapes.is_counted_per_document(child) and sum(kinds[child].values()) == objects:
                found.setdefault("required", []).append(shapes.unescape(key))
    if named:
        found["properties"] = named
    return found


def _list(types: str | list[str]) -> list[str]:
    return [types] if isinstance(types, str) else types


def _one_or_many(types: list[str]) -> str | list[str]:
    distinct = list(dict.fromkeys(types))
    return distinct[0] if len(distinct) == 1 else distinct
