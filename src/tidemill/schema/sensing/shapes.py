"""Which paths a JSON document has and which types stand there, as a set of (path, type).

A path is like a JSON Pointer: `/customer/name`; `/items/[]` are the elements of an array, `/scores/{}` the values of a
map. A key that looks like one of these two is escaped with `~2`. An object with more distinct keys than `max_keys` is a
map: its keys are data. That is decided on the union of all keys that were seen, so that it does not matter in which
order profiles are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

ROOT = ""
ELEMENT, VALUE = "[]", "{}"

Shape = frozenset[tuple[str, str]]
Counted = frozenset[tuple[str, str, int]]
"""A shape, with how many keys of a map have it: 1 everywhere else, so that profiles add up in any order."""

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
UNREADABLE: Counted = frozenset({(ROOT, "unreadable", 1)})


def shape_of(document: str | bytes, max_depth: int, max_keys: int) -> Counted:
    """`UNREADABLE` for a text that the parser refuses."""
    try:
        value = orjson.loads(document)
    except orjson.JSONDecodeError:
        return UNREADABLE
    found: set[tuple[str, str]] = set()
    _walk(value, ROOT, max_depth, found)
    counts = dict.fromkeys(found, 1)
    if len(found) > max_keys:
        counts = collapse(counts, max_keys)
    return frozenset((path, kind, count) for (path, kind), count in counts.items())


def _walk(value: Any, path: str, depth: int, found: set[tuple[str, str]]) -> None:
    kind = "null" if value is None else _TYPES[type(value)]
    found.add((path, kind))
    if depth == 0:
        return
    if kind == "object":
        for key, inner in value.items():
            _walk(inner, f"{path}/{escape(key)}", depth - 1, found)
    elif kind == "array":
        for inner in value:
            _walk(inner, f"{path}/{ELEMENT}", depth - 1, found)


def escape(key: str) -> str:
    if key in (ELEMENT, VALUE) or key.startswith("~2"):
        return "~2" + key.replace("~", "~0").replace("/", "~1")
    return key.replace("~", "~0").replace("/", "~1")


def unescape(part: str) -> str:
    return part.removeprefix("~2").replace("~1", "/").replace("~0", "~")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def is_counted_per_document(path: str) -> bool:
    """Whether a document has the path at most once: neither an array nor a map is above it."""
    return not any(part in (ELEMENT, VALUE) for part in path.split("/"))


def collapse(paths: Mapping[tuple[str, str], int], max_keys: int) -> dict[tuple[str, str], int]:
    """With objects of many keys as maps, from the root down; what falls together is added up."""
    result = dict(paths)
    done: set[str] = set()
    while True:
        wide = [path for path, keys in _children(result).items() if path not in done and _is_map(keys, max_keys)]
        if not wide:
            return result
        top = min(wide, key=lambda path: path.count("/"))
        done.add(top)
        result = _without_keys(result, top)


def _children(paths: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path, _ in paths:
        if path:
            above, _, key = path.rpartition("/")
            found.setdefault(above, set()).add(key)
    return found


def _is_map(keys: set[str], max_keys: int) -> bool:
    names = keys - {ELEMENT, VALUE}
    return bool(names) and (VALUE in keys or len(names) > max_keys)


def _without_keys(paths: Mapping[tuple[str, str], int], top: str) -> dict[tuple[str, str], int]:
    result: dict[tuple[str, str], int] = {}
    start = f"{top}/"
    for (path, kind), count in paths.items():
        if path.startswith(start):
            key, slash, rest = path[len(start) :].partition("/")
            if key != ELEMENT:
                path = f"{start}{VALUE}{slash}{rest}"
        result[path, kind] = result.get((path, kind), 0) + count
    return result
