"""How golden files are written: one row and one piece of the stream a line, so that a difference is readable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson


def to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def to_lines(items: Iterable[Any]) -> str:
    return "[\n  " + ",\n  ".join(map(to_json, items)) + "]"
