"""Tables named by patterns, outside of sources: `orders`, `schema.table`, `schema.*`, `schema.prefix%`.

A name without a schema is that of a table in any schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from tidemill.model.table import Table


class TableNames:
    """No patterns: every table. A table without a schema goes by its database, as MySQL's `shop.orders` does."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._whole = [re.compile(_expression(text), re.DOTALL) for text in patterns if "." in text]
        self._bare = [re.compile(_expression(text), re.DOTALL) for text in patterns if "." not in text]
        self._known: dict[str, bool] = {}

    def match(self, table: Table) -> bool:
        if not self._whole and not self._bare:
            return True
        full = table.full_name
        if full not in self._known:
            names = (full, f"{table.database}.{table.name}")
            self._known[full] = any(each.fullmatch(name) for each in self._whole for name in names) or any(
                each.fullmatch(table.name) for each in self._bare
            )
        return self._known[full]


def matches_name(full_name: str, pattern: str) -> bool:
    """As commands name tables, with `*` and `?`: with the schema, or without."""
    name = full_name if "." in pattern else bare_name(full_name)
    return fnmatchcase(full_name, pattern) or fnmatchcase(name, pattern)


def find_name(text: str, known: Iterable[str]) -> str:
    """The full name that is meant: `text` itself, or the one table of that name where no schema is given."""
    names = set(known)
    meant = [name for name in names if bare_name(name) == text]
    return meant[0] if text not in names and len(meant) == 1 else text


def bare_name(full_name: str) -> str:
    """Without its schema."""
    return full_name.partition(".")[2] or full_name


def _expression(text: str) -> str:
    return "".join(".*" if char in "*%" else re.escape(char) for char in text)
