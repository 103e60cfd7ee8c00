"""Names that schema languages accept, made from names that databases accept."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidemill.model.table import Table


def identifier(name: str) -> str:
    """Letters, digits and underscores of ASCII stay; every other character becomes `_u` and its code in hex.

    >>> identifier("größe in m²"), identifier("1st")
    ('gr_u00f6_u00dfe_u0020in_u0020m_u00b2', '_1st')
    """
    text = re.sub(r"[^A-Za-z0-9_]", lambda found: f"_u{ord(found.group()):04x}", name)
    return text if text and not text[0].isdigit() else f"_{text}"


def identifiers(names: Iterable[str]) -> list[str]:
    """One for each name, none twice: the later of two that would be equal gets a number."""
    taken: set[str] = set()
    made = []
    for name in names:
        base = found = identifier(name)
        number = 1
        while found in taken:
            number += 1
            found = f"{base}_{number}"
        taken.add(found)
        made.append(found)
    return made


def namespace(table: Table, first: str | None = None) -> str:
    """`database.schema.table`, the same for every version of the table; `first` stands instead of the database."""
    parts = [table.database if first is None else first, table.schema, table.name]
    return ".".join(identifier(part) for part in parts if part)
