"""Tables of StarRocks over its MySQL protocol: validated, created as primary key tables, given what they lack."""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidemill.contracts import Notice
from tidemill.errors import DeliveryError, Refused
from tidemill.model.table import Column, Table
from tidemill.sinks._shared.table_name import TableName
from tidemill.sinks._shared.unfollowed import CODE, MARK, Looks, added_comment, is_known, notices
from tidemill.sinks.starrocks.renames import find_alike, find_exchanged, order_renames
from tidemill.sinks.starrocks.rows import AUDIT, IS_DELETED, VERSION, LoadPiece
from tidemill.sinks.starrocks.types import default, holds, kinds_of

_REFUSED = {1044, 1045, 1064, 1142, 1227, 5203}  # access denied, syntax; 5203 is StarRocks' own "access denied"
_KEYS_PER_QUERY = 1000
_KEYS_PER_PURGE = 4000  # of more, a look at all versions is cheaper
_UNSPEAKABLE = re.compile(r"[`\"\\\x00-\x1f\x7f]")  # what the headers of a load have no way to write


@dataclass(frozen=True, slots=True)
class StarRocksTableName(TableName):
    @staticmethod
    def quote(name: str) -> str:
        return quote(name)


@dataclass(frozen=True, slots=True)
class StarRocksDestination:
    """`kinds` are the types of the columns that are loaded; `extra` says that the table has others besides."""

    name: StarRocksTableName
    kinds: dict[str, str]
    extra: bool
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class StarRocksChange:
    """A statement that gives a table the column `column`, by renaming `old` or, where that is empty, as a new one."""

    statement: str
    column: str
    old: str = ""


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return str(value)
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


@dataclass(slots=True)
class StarRocksTables:
    connection: Any
    where: str
    create: bool
    properties: dict[str, str]
    timeout: float
    sink: str = ""
    looks: Looks = field(default_factory=Looks)
    _known: dict[StarRocksTableName, tuple[tuple[object, ...], StarRocksDestination]] = field(default_factory=dict)

    def destination(self, name: StarRocksTableName, table: Table, since: int) -> StarRocksDestination:
        """Where the table's rows are loaded. Makes what is missing, whenever another structure comes, whose rows begin
        at offset `since`."""
        if not self.knows(name, table):
            destination = self._prepare(name, table, since)
            self._known[name] = _identity(table), destination
            self.looks.record(table.full_name, destination.notices)
        return self._known[name][1]

    def knows(self, name: StarRocksTableName, table: Table) -> bool:
        """Whether this structure came last. One that comes back may have to be followed back."""
        return name in self._known and self._known[name][0] == _identity(table)

    def find_keys(self, name: StarRocksTableName, keys: list[str], rows: list[tuple[Any, ...]]) -> set[tuple[str, ...]]:
        """Which of these keys the table has, as `text_of` writes them; not those that are marked as deleted."""
        names = ", ".join(quote(key) for key in keys)
        found: set[tuple[str, ...]] = set()
        for chosen in choose_keys(keys, rows):
            answer = self.run(f"SELECT {names} FROM {name} WHERE {chosen} AND COALESCE({quote(IS_DELETED)}, 0) = 0")
            found |= {tuple(text_of(v) for v in row) for row in answer}
        return found

    def purge(self, name: StarRocksTableName, piece: LoadPiece, first: int, end: int) -> None:
        """Removes those of the piece's keys that are marked as deleted by an event from `first` to before `end`: not a
        row that came since. Many are found by their versions, which are one after the other; no key is looked at."""
        marked = f"{quote(IS_DELETED)} = TRUE AND {quote(VERSION)} >= {first} AND {quote(VERSION)} < {end}"
        if piece.rows.num_rows > _KEYS_PER_PURGE:
            self.run(f"DELETE FROM {name} WHERE {marked}")
            return
        for chosen in choose_keys(list(piece.keys), piece.key_values()):
            self.run(f"DELETE FROM {name} WHERE {chosen} AND {marked}")

    def versions_from(self, name: StarRocksTableName, version: int) -> int:
        """How many rows are of events from there on: some, where those were here before."""
        return int(self.run(f"SELECT COUNT(*) FROM {name} WHERE {quote(VERSION)} >= {version}")[0][0])

    def truncate(self, name: StarRocksTableName, version: int, end: int) -> None:
        """Removes what is older than the event. Rows of later events stay: a replay may find them there, and their
        labels say that they are loaded."""
        if self.versions_from(name, end):
            raise Refused(
                f"{name.plain} has versions beyond this batch, so a TRUNCATE cannot tell old from new",
                where=self.where,
                fix="Was the state directory lost, or the checkpoint moved back? Empty the table by hand, or set "
                f"offset_base above every version (SELECT MAX({VERSION}) FROM {name.plain}), and start again.",
            )  # fmt: skip
        self.run(f"DELETE FROM {name} WHERE {quote(VERSION)} < {version} OR {quote(VERSION)} IS NULL")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with explain_errors(self.where), self.connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def comments(self, name: StarRocksTableName) -> dict[str, str]:
        """Of columns where they say something of ours."""
        rows = self.run(
            "SELECT column_name, column_comment FROM information_schema.columns WHERE table_schema = "
            f"{literal(name.database)} AND table_name = {literal(name.table)}"
        )
        return {column: comment for column, comment in rows if MARK in (comment or "")}

    def describe(self, name: StarRocksTableName) -> dict[str, tuple[str, bool]]:
        """Column -> (type, whether it is in the primary key)."""
        rows = self.run(
            "SELECT column_name, column_type, column_key FROM information_schema.columns WHERE table_schema = "
            f"{literal(name.database)} AND table_name = {literal(name.table)} ORDER BY ordinal_position"
        )
        return {column: (kind, key == "PRI") for column, kind, key in rows}

    def plan(self, name: StarRocksTableName, table: Table, since: int) -> tuple[str, ...]:
        """The statements that `destination` would run, in order; `Refused` where it would refuse. Reads only. A server
        that knows no RENAME COLUMN, before 3.3.2, says so only when it is asked: then a column is added instead."""
        self._check_structure(table)
        there = self.describe(name)
        if not there:
            return self._creation(name, table)
        self._check(name, table, there)
        return tuple(change.statement for change in self._changes(name, table, there, since, {}))

    def _prepare(self, name: StarRocksTableName, table: Table, since: int) -> StarRocksDestination:
        self._check_structure(table)
        there = self.describe(name)
        if not there:
            for statement in self._creation(name, table):
                self.run(statement)
            there = self.describe(name)
        self._check(name, table, there)
        there = self._change(name, table, there, since)
        wanted = kinds_of(table)
        kinds = loaded_kinds(table, there)
        said = self.comments(name)
        clear = {c: f"ALTER TABLE {name} MODIFY COLUMN {quote(c)} COMMENT ''" for c in said}
        found = notices(self.sink, table, name.plain, said, clear) + self._exchange(name, table)
        return StarRocksDestination(name, kinds, bool(there.keys() - wanted.keys() - AUDIT.keys()), found)

    def _check_structure(self, table: Table) -> None:
        if not table.key:
            raise Refused(
                f"{table.full_name} has no key, which a primary key table needs", where=self.where,
                fix="Give it a primary key, or REPLICA IDENTITY USING INDEX at the source, or leave it out.",
            )  # fmt: skip
        wanted = kinds_of(table)
        clash = [column for column in wanted if column in AUDIT or column == "__op"]
        if clash:
            raise Refused(
                f"{table.full_name} has columns that the sink uses itself: {', '.join(clash)}", where=self.where,
                fix="Rename them at the source.",
            )  # fmt: skip
        unspeakable = [column for column in wanted if _UNSPEAKABLE.search(column)]
        if unspeakable:
            raise Refused(
                f"{table.full_name} has columns whose names no load can give: {', '.join(map(repr, unspeakable))}",
                where=self.where, fix="Names must be without quotes, backslashes and control characters.",
            )  # fmt: skip

        alike = find_alike(wanted)
        if alike:
            raise Refused(
                f"{table.full_name} has columns that StarRocks cannot tell apart: {', '.join(alike)}", where=self.where,
                fix="Its names do not differ by case. Rename one at the source.",
            )  # fmt: skip

    def _changes(
        self, name: StarRocksTableName, table: Table, there: dict[str, tuple[str, bool]], since: int,
        stuck: dict[str, str],
    ) -> list[StarRocksChange]:  # fmt: skip
        """What the table lacks; `Refused` if what it has cannot take the rows. `stuck` are columns that the server
        could not rename: new name -> old name."""
        wanted, columns = kinds_of(table), {c.name: c for c in table.columns}
        names = {column: column for column in there}  # by their names afterwards
        found: list[StarRocksChange] = []
        for old, new in order_renames(table, names.keys(), stuck.keys()):
            found.append(StarRocksChange(f"ALTER TABLE {name} RENAME COLUMN {quote(old)} TO {quote(new)}", new, old))
            names[new] = names.pop(old)
        unfit = [
            f'"{names[column]}" is {there[names[column]][0]}, the source needs {kind}'
            for column, kind in wanted.items()
            if column in names and not holds(there[names[column]][0], kind)
        ]
        if unfit:
            raise Refused(
                f"{name.plain} does not fit the source: {'; '.join(unfit)}", where=self.where,
                fix="Change them with ALTER TABLE ... MODIFY COLUMN; SHOW ALTER TABLE COLUMN says how far that is.",
            )  # fmt: skip
        for column, kind in {**wanted, **AUDIT}.items():
            if column not in names:
                more = self._initial(name, columns[column], kind, since, stuck) if column in columns else ""
                found.append(
                    StarRocksChange(f"ALTER TABLE {name} ADD COLUMN {quote(column)} {kind} NULL{more}", column)
                )
        return found

    def _change(
        self, name: StarRocksTableName, table: Table, there: dict[str, tuple[str, bool]], since: int
    ) -> dict[str, tuple[str, bool]]:
        """Answers the columns as they are then."""
        stuck: dict[str, str] = {}
        while changes := self._changes(name, table, there, since, stuck):
            for change in changes:
                try:
                    self._make(name, change)
                except Refused:
                    if not change.old:
                        raise
                    stuck[change.column] = change.old
                    break
            there = self.describe(name)
        return there

    def _initial(self, name: StarRocksTableName, column: Column, kind: str, since: int, stuck: dict[str, str]) -> str:
        """What ADD COLUMN says of the rows that are there: their value, or in a comment that it is not known."""
        if column.name in stuck:
            why = f'it was "{stuck[column.name]}" before, and this version of StarRocks cannot rename a column'
        elif not is_known(column):
            why = ""
        else:
            fits, value = default(column, kind)
            if fits:
                return "" if value is None else f" DEFAULT {literal(value)}"
            why = f"StarRocks has no DEFAULT for {kind} that is the value which they have at the source"
        if not self.run(f"SELECT 1 FROM {name} LIMIT 1"):
            return ""
        return f" COMMENT {literal(added_comment(column, since, why=why))}"

    def _exchange(self, name: StarRocksTableName, table: Table) -> tuple[Notice, ...]:
        """Columns that took each other's names: there is nothing here that could rename both at once, nor tell whether
        it was done."""
        both = find_exchanged(table)
        if not both:
            return ()
        return (
            Notice(
                CODE, table.full_name,
                f'sink "{self.sink}", {name.plain}: {", ".join(both)} exchanged their names at the source. Rows that '
                "did not change since have their values in the columns of the names before.",
                "Copy the values of these columns from the source yourself. The next change of the table's structure "
                "at the source ends this notice.",
            ),
        )  # fmt: skip

    def _creation(self, name: StarRocksTableName, table: Table) -> tuple[str, ...]:
        statement = self.creation(name, table, kinds_of(table))
        if not self.create:
            raise Refused(
                f"the table {name.plain} does not exist", where=self.where,
                fix=f"Create it, or set create_tables: true. It would be made so:\n{statement}",
            )  # fmt: skip
        return f"CREATE DATABASE IF NOT EXISTS {quote(name.database)}", statement

    def creation(self, name: StarRocksTableName, table: Table, wanted: dict[str, str]) -> str:
        columns = [f"{quote(c)} {kind} {'NOT NULL' if c in table.key else 'NULL'}" for c, kind in wanted.items()]
        columns += [f"{quote(c)} {kind} NULL" for c, kind in AUDIT.items()]
        key = ", ".join(quote(c) for c in table.key)
        body = ",\n  ".join(columns)
        return (
            f"CREATE TABLE IF NOT EXISTS {name} (\n  {body}\n)\nPRIMARY KEY ({key})\n"
            f"DISTRIBUTED BY HASH({key}){self.tail()}"
        )

    def tail(self) -> str:
        """Of a table that is created."""
        properties = ", ".join(f'"{n}" = "{v}"' for n, v in self.properties.items())
        return f"\nPROPERTIES ({properties})" if properties else ""

    def _check(self, name: StarRocksTableName, table: Table, there: dict[str, tuple[str, bool]]) -> None:
        model = self.run(
            "SELECT table_model FROM information_schema.tables_config WHERE table_schema = "
            f"{literal(name.database)} AND table_name = {literal(name.table)}"
        )
        kind = str(model[0][0]) if model else "unknown"
        if not kind.upper().startswith("PRIMARY"):
            raise Refused(
                f"{name.plain} is not a primary key table: {kind}", where=self.where,
                fix='Choose another "table", or create it as docs/sinks/starrocks.md shows.',
            )  # fmt: skip
        key = [column for column, (_, in_key) in there.items() if in_key]
        if set(key) != set(table.key):
            raise Refused(
                f"{name.plain} has the key ({', '.join(key)}), but {table.full_name} ({', '.join(table.key)})",
                where=self.where, fix="StarRocks cannot change a primary key: fill a new table.",
            )  # fmt: skip

    def _make(self, name: StarRocksTableName, change: StarRocksChange) -> None:
        column = change.column
        with self._unless_done(name, column):
            self.run(change.statement)
        # Without fast schema evolution this is a job; loads that name the column fail until it is done.
        deadline = time.monotonic() + self.timeout
        while column not in self.describe(name):
            if time.monotonic() > deadline:
                raise DeliveryError(
                    f'the new column "{column}" of {name.plain} is not there yet', where=self.where,
                    fix=f"SHOW ALTER TABLE COLUMN FROM {name.database} says how far it is; it is looked at again.",
                )  # fmt: skip
            time.sleep(0.1)

    @contextlib.contextmanager
    def _unless_done(self, name: StarRocksTableName, column: str) -> Iterator[None]:
        """Another lane may have been faster."""
        try:
            yield
        except DeliveryError:
            if column not in self.describe(name):
                raise


def loaded_kinds(table: Table, there: dict[str, tuple[str, bool]]) -> dict[str, str]:
    """What the values of a structure's columns are written as, of those that the table has."""
    return {column: _load_type(there[column][0], kind) for column, kind in kinds_of(table).items() if column in there}


def choose_keys(keys: list[str], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    """Conditions that choose the rows of these keys, some hundreds each."""
    names = ", ".join(quote(key) for key in keys)
    target = f"({names})" if len(keys) > 1 else names
    for at in range(0, len(rows), _KEYS_PER_QUERY):
        values = ", ".join(
            "(" + ", ".join(literal(v) for v in row) + ")" if len(keys) > 1 else literal(row[0])
            for row in rows[at : at + _KEYS_PER_QUERY]
        )
        yield f"{target} IN ({values})"


def _load_type(there: str, wanted: str) -> str:
    """What values are written as: text where the table has text, else as the source's type is."""
    is_text = there.upper().startswith(("VARCHAR", "STRING", "CHAR"))
    return there.upper() if is_text else wanted


def _identity(table: Table) -> tuple[object, ...]:
    """Of a structure as it came: one that comes back may say what was renamed for it."""
    return table.full_name, table.lineage


def text_of(value: Any) -> str:
    """A key's value, ours or the server's: the driver makes datetimes of them, and leaves out a fraction of zero."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ", "microseconds")
    return str(value)


@contextlib.contextmanager
def explain_errors(where: str) -> Iterator[None]:
    import pymysql

    try:
        yield
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if code in _REFUSED:
            raise Refused(
                f"StarRocks refused a statement: error {code}", where=where,
                fix="The user needs SELECT, INSERT, DELETE, ALTER, and CREATE TABLE with create_tables.",
            ) from error  # fmt: skip
        raise DeliveryError(
            f"StarRocks' MySQL port did not do it: error {code}", where=where, fix="Is the frontend up?"
        ) from error
    except OSError as error:
        raise DeliveryError(
            "StarRocks' MySQL port cannot be reached", where=where, fix="Is the frontend up?"
        ) from error
