"""Text of others on a terminal: a name in a database, or a reason that somebody gave, must not steer it."""

from __future__ import annotations

import re

# All but line ends and tabs: escape sequences, backspaces, and what shows text in another order than it has.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Each of them as Python writes it: `\\x1b`."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
