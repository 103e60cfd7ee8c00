"""DDL statements as values: what one asks for, not yet what it does to a table (`history`)."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.decoders.mysql_schema.column_definition import Definition


@dataclass(frozen=True, slots=True)
class WrittenName:
    """A table's name as written; without a database it is in the session's."""

    database: str
    name: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    """`source` is set by LIKE. Without it and without columns (CREATE … SELECT) the structure is not known. Of a
    temporary table there is only the name. `selects`: it has rows, and the statement is all that the binlog has of
    them."""

    table: WrittenName
    columns: tuple[Definition, ...] = ()
    key: tuple[str, ...] = ()
    charset: str = ""
    source: WrittenName | None = None
    if_not_exists: bool = False
    temporary: bool = False
    selects: bool = False


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: Definition
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """MODIFY (same name) and CHANGE."""

    old: str
    column: Definition
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    old: str
    new: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowColumn:
    """SET VISIBLE and SET INVISIBLE."""

    name: str
    invisible: bool


@dataclass(frozen=True, slots=True)
class SetDefault:
    """SET DEFAULT and DROP DEFAULT, in the form of `defaults`."""

    name: str
    default: str | None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddKey:
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropKey:
    pass


@dataclass(frozen=True, slots=True)
class Charset:
    """A new default; with `convert` also the charset of every column. An empty name stands for the database's."""

    name: str
    convert: bool = False


@dataclass(frozen=True, slots=True)
class Versioning:
    """ADD and DROP SYSTEM VERSIONING."""

    on: bool


@dataclass(frozen=True, slots=True)
class Aside:
    """What leaves columns and keys as they are: an `index` of that name, empty where the statement names none, or the
    table's `comment` with its text."""

    change: str
    text: str


Clause = (
    AddColumn
    | ChangeColumn
    | RenameColumn
    | DropColumn
    | ShowColumn
    | SetDefault
    | AddKey
    | DropKey
    | Versioning
    | Charset
    | Aside
)


@dataclass(frozen=True, slots=True)
class AlterTable:
    table: WrittenName
    clauses: tuple[Clause, ...] = ()
    rename_to: WrittenName | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTable:
    tables: tuple[WrittenName, ...]
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class RenameTable:
    """In order: a swap goes over a third name."""

    pairs: tuple[tuple[WrittenName, WrittenName], ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class TruncateTable:
    table: WrittenName


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    """Without a charset it takes the session's collation_server."""

    name: str
    charset: str = ""
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    """An empty name means the session's database. `charset` is empty for DEFAULT, None where none is named."""

    name: str
    charset: str | None


@dataclass(frozen=True, slots=True)
class DropDatabase:
    name: str


@dataclass(frozen=True, slots=True)
class RowStatement:
    """A change of rows, written into the binlog as a statement: there are no row events for it."""

    table: WrittenName


Statement = (
    CreateTable
    | AlterTable
    | DropTable
    | RenameTable
    | TruncateTable
    | CreateDatabase
    | AlterDatabase
    | DropDatabase
    | RowStatement
)
