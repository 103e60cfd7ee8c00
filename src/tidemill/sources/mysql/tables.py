"""Which tables are meant: names and patterns of the configuration, matched against the catalog and the stream.

shop.orders        one table; a name without a dot is in the dsn's database
shop.*             every table of the database, also those that are created later
`my shop`.`a.b*c`  a part in backticks is taken literally
mysql.*            databases of the server itself are meant only where they are named, not by *.*
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.decoders.mysql_schema import SYSTEM
from tidemill.errors import ConfigError, SetupError
from tidemill.sources._shared.patterns import Pattern, Unmatched
from tidemill.sources.mysql.client import MysqlSession
from tidemill.sources.mysql.stream import account


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


def find(db: MysqlSession, selection: Selection) -> tuple[list[tuple[str, str]], list[Unmatched]]:
    """(database, table) of every base table that is meant, in order, and the patterns that match none: silence would
    look like a quiet table, and an error would make a pipeline unstartable because a table was dropped."""
    rows = db.rows(
        "SELECT CAST(TABLE_SCHEMA AS BINARY) AS d, CAST(TABLE_NAME AS BINARY) AS t, TABLE_TYPE AS k"
        " FROM information_schema.TABLES WHERE TABLE_SCHEMA NOT IN %s",
        [("", *selection.left_out)],
    )
    named = [((name_of(row["d"]), name_of(row["t"])), row["k"]) for row in rows]
    base = [name for name, kind in named if kind in ("BASE TABLE", "SYSTEM VERSIONED")]
    meant = sorted(name for name in base if selection(*name))
    unreadable = {(name_of(row["d"]), name_of(row["t"])) for row in rows if not _is_text(row["d"] + row["t"])}
    if lost := next((name for name in meant if name in unreadable), None):
        raise SetupError(
            f"the name of {lost[0]}.{lost[1]} is no UTF-8: its rows cannot be captured", where=db.where,
            fix="Rename the table, or name others than it in `tables`.",
        )  # fmt: skip
    everything = [name for name, _ in named]
    return meant, [
        _unmatched_notice(pattern, base, everything, db)
        for pattern in selection.patterns
        if not any(pattern.matches(*name) for name in base)
    ]


def _unmatched_notice(
    pattern: Pattern, base: Sequence[tuple[str, str]], all_kinds: Sequence[tuple[str, str]], db: MysqlSession
) -> Unmatched:
    other = next((name for name in all_kinds if pattern.matches(*name)), None)
    if other is not None:
        what = f"{other[0]}.{other[1]} is no base table: the binlog does not have it"
        return Unmatched(pattern, what, "Name the tables that it reads in `tables`.")
    unseen = ""
    if not sees_all(db):
        database, table = pattern.literal
        name = f"{quote(database) if database else '*'}.{quote(table) if database and table else '*'}"
        unseen = f"If it is there, the account does not see it. Run: GRANT SELECT ON {name} TO {account(db)};"
    return Unmatched.yet(pattern, [f"{d}.{t}" for d, t in base], unseen)


def sees_all(db: MysqlSession) -> bool:
    """Whether the account may read every table, so that no GRANT would show it more. By itself: roles are not asked."""
    grantee = account(db)
    return bool(
        db.rows(
            "SELECT 1 AS one FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'SELECT' AND GRANTEE = %s",
            [grantee],
        )
    )


def name_of(value: bytes) -> str:
    """A name of the catalog. MariaDB takes halves of surrogate pairs for letters, which are no UTF-8: these are shown,
    as \\xed\\xa0\\x80."""
    return value.decode(errors="backslashreplace")


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
