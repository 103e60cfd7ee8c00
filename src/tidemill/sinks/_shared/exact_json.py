"""JSON documents read without losing a digit, to be compared and kept: numbers beyond 64 bits stay text with a mark."""

from __future__ import annotations

import json
from typing import Any

_MARK = "\0"  # no string of a document begins with it and means the same
_DIGITS = 18


def load_exact(document: bytes | str) -> Any:
    """Integers of up to 18 digits are integers; every other number is its own text, marked."""
    return _DECODER.decode(document if isinstance(document, str) else document.decode())


def show_exact(value: Any) -> str | None:
    """A value of such a document for people; None for null."""
    if value is None:
        return None
    return value.removeprefix(_MARK) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS else _MARK + text


_DECODER = json.JSONDecoder(parse_float=lambda text: _MARK + text, parse_int=_integer, strict=False)
