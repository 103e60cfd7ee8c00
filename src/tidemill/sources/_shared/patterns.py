"""Names and patterns of tables, as the `tables` of every source with schemas has them.

shop.orders      one table; a name without a dot is in the source's default schema
shop.*           every table of the schema
shop.ord%        every table that begins so (`*` and `%` both stand for anything)
A part in the database's own quotes is taken literally.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pattern:
    """`literal` are schema and name where they are no patterns, None where they are."""

    text: str
    schema: re.Pattern[str]
    name: re.Pattern[str]
    literal: tuple[str | None, str | None]

    @classmethod
    def parse(cls, text: str, *, quote: str, default: str, ignore_case: bool = False) -> Pattern:
        """`default` is the schema of a name without one; empty if there is none, and then a schema is needed."""
        part = rf"{quote}(?:[^{quote}]|{quote}{quote})+{quote}|[^{quote}.]+"
        found = re.fullmatch(rf"(?:({part})\.)?({part})", text)
        if not found or not (found[1] or default):
            raise ConfigError(
                f'"{text}" is not a table name or pattern',
                fix=f"Write schema.table, schema.*, schema.prefix% or {quote}a{quote}.{quote}b{quote}.",
            )
        flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
        schema = _expression(found[1], quote) if found[1] else re.escape(default)
        literal = (_literal(found[1], quote) if found[1] else default, _literal(found[2], quote))
        return cls(text, re.compile(schema, flags), re.compile(_expression(found[2], quote), flags), literal)

    def matches(self, schema: str, name: str) -> bool:
        return bool(self.schema.fullmatch(schema) and self.name.fullmatch(name))


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A pattern that matches no table yet, and why that may be."""

    pattern: Pattern
    what: str
    fix: str

    @classmethod
    def yet(cls, pattern: Pattern, names: Sequence[str] = (), more: str = "") -> Unmatched:
        """Nothing of any kind matches; it may be created, or one of `names` is meant, with its schema or without."""
        hint = suggest(pattern.text, names)
        later = "A table that is created later is captured from then on; if none will be, correct `tables`."
        return cls(pattern, f'no table matches "{pattern.text}" yet', f"{hint}{later}{f' {more}' if more else ''}")


def suggest(text: str, names: Sequence[str]) -> str:
    """A question that ends with a space, if one of the names is near; empty if none is."""
    forms = {name.partition(".")[2]: name for name in names} | {name: name for name in names}
    near = difflib.get_close_matches(text, forms, n=1)
    return f"Did you mean {forms[near[0]]}? " if near else ""


def _literal(part: str, quote: str) -> str | None:
    if part.startswith(quote):
        return part[1:-1].replace(quote * 2, quote)
    return None if set(part) & set("*%") else part


def _expression(part: str, quote: str) -> str:
    literal = _literal(part, quote)
    if literal is not None:
        return re.escape(literal)
    return "".join(".*" if c in "*%" else re.escape(c) for c in part)
