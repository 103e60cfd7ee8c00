"""Which tables are meant: names and patterns of the configuration, matched against the catalog and the stream.

shop.orders        one table; a name without a dot is in the dsn's database
shop.*             every table of the database, also those that are created later
`my shop`.`a.b*c`  a part in backticks is taken literally
mysql.*            databases of the server itself are meant only where they are named, not by *.*
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.decoders.mysqltables import SYSTEM
from tidemill.errors import ConfigError
from tidemill.sources._my_connect import Session
from tidemill.sources._my_errors import TableMissing
from tidemill.sources._my_stream import account
from tidemill.sources._patterns import Pattern


@dataclass(frozen=True, slots=True)
class Selection:
    """The `tables` of a source. Without any, every table that is not the server's own."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def of(cls, tables: Sequence[str], database: str, *, ignore_case: bool = False) -> Selection:
        try:
            parsed = [Pattern.parse(t, quote="`", default=database, ignore_case=ignore_case) for t in tables]
        except ConfigError as error:
            hint = "" if database else " A name alone needs a database in the dsn."
            raise ConfigError(error.what, fix=error.fix + hint) from error
        return cls(tuple(parsed))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Databases of the server itself that no pattern names."""
        return tuple(name for name in SYSTEM if not any(_names(pattern, name) for pattern in self.patterns))

    def __call__(self, database: str, table: str) -> bool:
        patterns = self.patterns
        if database.lower() in SYSTEM:
            patterns = tuple(pattern for pattern in patterns if _names(pattern, database))
        elif not patterns:
            return True
        return any(pattern.matches(database, table) for pattern in patterns)


def _names(pattern: Pattern, database: str) -> bool:
    return (pattern.literal[0] or "").lower() == database.lower()


def find(db: Session, selection: Selection) -> list[tuple[str, str]]:
    """(database, table) of every base table that is meant, in order. A pattern that matches nothing is `TableMissing`:
    silence would look like a quiet table."""
    rows = db.rows(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, TABLE_TYPE AS k FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA NOT IN %s",
        [("", *selection.left_out)],
    )
    base = [(row["d"], row["t"]) for row in rows if row["k"] in ("BASE TABLE", "SYSTEM VERSIONED")]
    for pattern in selection.patterns:
        if any(pattern.matches(*name) for name in base):
            continue
        raise _missing(pattern, base, [(row["d"], row["t"]) for row in rows], db)
    return sorted(name for name in base if selection(*name))


def _missing(
    pattern: Pattern, base: Sequence[tuple[str, str]], all_kinds: Sequence[tuple[str, str]], db: Session
) -> TableMissing:
    other = next((name for name in all_kinds if pattern.matches(*name)), None)
    if other is not None:
        return TableMissing(
            f"{other[0]}.{other[1]} is no base table: the binlog does not have it", where=db.where,
            fix="Name the tables behind it.",
        )  # fmt: skip
    near = difflib.get_close_matches(pattern.text, [f"{d}.{t}" for d, t in base], n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    database, table = pattern.literal
    name = f"{quoted(database) if database else '*'}.{quoted(table) if database and table else '*'}"
    return TableMissing(
        f'no table matches "{pattern.text}"', where=db.where,
        fix=f"{hint}Create it first, or correct `tables`. If it is there, the account does not see it. Run:"
        f" GRANT SELECT ON {name} TO {account(db)};",
    )  # fmt: skip


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
