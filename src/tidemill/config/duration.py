"""Durations as other systems write them (`1m`, `90s`, `500ms`), for options that are known by their names."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)([0-9]+(\.[0-9]+)?(ms|s|m|h))*$"


def parse_duration(value: Any) -> Any:
    """Seconds. What is no text is left as it is.

    >>> parse_duration("1m30s"), parse_duration("500ms"), parse_duration(2)
    (90.0, 0.5, 2)
    """
    if not isinstance(value, str):
        return value
    if not re.match(_PATTERN, value):
        raise ValueError(f"{value!r} is no duration. Write a number and its unit: 500ms, 90s, 1m, 1h")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([0-9.]+)(ms|s|m|h)", value))


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": _PATTERN}]}),
]
"""Seconds, or a text such as `1m`."""
