"""Log sequence numbers: 64 bits, written as two hexadecimal halves (`16/B374D848`), compared as numbers."""

from __future__ import annotations

import re

from tidemill.errors import ConfigError
from tidemill.model.position import Ordering, Position

_FORM = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """
    >>> parse_lsn("16/B374D848")
    97500059720
    """
    found = _FORM.fullmatch(text)
    if not found:
        raise ConfigError(f'"{text}" is not a PostgreSQL position', fix="Write it like 16/B374D848.")
    return int(found[1], 16) << 32 | int(found[2], 16)


def format_lsn(lsn: int) -> Position:
    return Position(f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}")


def compare_lsn(a: Position, b: Position) -> Ordering:
    """All positions of one slot stand in one order."""
    left, right = parse_lsn(a), parse_lsn(b)
    return Ordering.SAME if left == right else Ordering.BEFORE if left < right else Ordering.AFTER
