"""Which structures each table has had, numbered and kept: what lets an event name its schema (invariant 6).

Capture registers a table whenever its source describes it; the command line and the API read at the same time.
One registry per source: the file `registry.sqlite` beside its log, or rows of a state store that several servers share
(ADR 49). No version is ever removed or renumbered. Beside them it keeps what a source notes for itself: a binlog does
not describe its tables, so that MySQL's source has to remember how they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tidemill.contracts import Structure
from tidemill.contracts.registry_database import RegistryDatabase, RegistryStatements, RegistryTables
from tidemill.errors import RegistryError, StateError, StateTooNew
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.schema.registry_file import RegistryFileTables

_SAME = "name = ? AND fingerprint = ?"
_IN_FORCE = "in_force."
_KEPT_TABLES = 2048
_FIELDS = "sequence, version, fingerprint, position, registered_at, document"


@dataclass(frozen=True, slots=True)
class Registration:
    """A numbered table, and the source position at which this structure was first met."""

    table: Table
    position: Position
    registered_at: str


class RegistryPlace(Protocol):
    """Who knows where a registry is: a pipeline, or a file's path."""

    def open_registry(self) -> SchemaRegistry:
        """It is made if it is missing."""

    def find_registry(self) -> SchemaRegistry | None:
        """For who only looks: None where there is none yet."""


@dataclass(frozen=True, slots=True)
class RegistryFile:
    path: Path

    def open_registry(self) -> SchemaRegistry:
        return SchemaRegistry(self.path)

    def find_registry(self) -> SchemaRegistry | None:
        return SchemaRegistry(self.path) if self.path.exists() else None


class SchemaRegistry:
    """Safe between threads and between processes. With `create=False` a missing file is an error, for readers.

    `earlier` is the file in which the registry was before it came to a shared store: the first use of an empty
    registry takes everything over from it, numbers included. The file is read and left as it is.
    """

    def __init__(self, place: Path | RegistryDatabase, *, create: bool = True, earlier: Path | None = None) -> None:
        if isinstance(place, Path):
            if not create and not place.exists():
                raise missing_registry(str(place))
            place = RegistryFileTables(place)
        self._database: RegistryDatabase = place
        self._tables = place.tables
        self._earlier = earlier
        # A table's history is asked for at each of its changes: a version is parsed once, not once for each later one.
        self._parse = lru_cache(_KEPT_TABLES)(_parse)

    @property
    def where(self) -> str:
        return self._database.where

    def together(self) -> AbstractContextManager[None]:
        return self._database.together()

    def register(self, table: Table, position: Position) -> Table:
        """The table with its fingerprint, version and sequence.

        Idempotent: a structure that was registered before, even with others in between, is the same version with
        the same sequence and keeps its first position. So a replay gives every event the numbers it had. What it says
        of renamed and added columns is against the structures before it, and those may be others this time.
        """
        wanted = table.with_fingerprint()
        name, same = wanted.full_name, (wanted.full_name, wanted.fingerprint)
        with self._reading() as run:
            known = self._select(run, _SAME, *same)
            if known:
                came = _as_it_came(known[0].table, wanted)
                if came.to_json() == known[0].table.to_json() and self._version_in_force(run, name) == came.version:
                    return came
        with self._writing() as run:  # of two processes with the same news, one finds the other's row
            known = self._select(run, _SAME, *same)
            if not known:
                self._put(run, f"{_IN_FORCE}{name}", None)
                return self._insert(run, wanted, position)
            came = _as_it_came(known[0].table, wanted)
            run(
                f"UPDATE {self._tables.versions} SET document = ? WHERE {self._tables.mine} AND sequence = ?",
                came.to_json(), *self._tables.owner, came.sequence,
            )  # fmt: skip
            self._put(run, f"{_IN_FORCE}{name}", None)
            if self._version_in_force(run, name) != came.version:
                self._put(run, f"{_IN_FORCE}{name}", str(came.version).encode())
            return came

    def get(self, name: str, version: int) -> Registration | None:
        return self._find("name = ? AND version = ?", name, version)

    def at(self, name: str, sequence: int) -> Registration | None:
        """The newest registration of the table whose sequence is not above `sequence`."""
        return self._find("name = ? AND sequence <= ? ORDER BY sequence DESC LIMIT 1", name, sequence)

    def latest(self, name: str) -> Registration | None:
        return self._find("name = ? ORDER BY sequence DESC LIMIT 1", name)

    def newest(self, name: str) -> Table | None:
        found = self.latest(name)
        return found.table if found else None

    def in_force(self, name: str) -> Table | None:
        with self._reading() as run:
            found = self._select(run, "name = ? AND version = ?", name, self._version_in_force(run, name))
        return found[0].table if found else None

    def versions(self, name: str) -> list[Table]:
        return [found.table for found in self.history(name)]

    def history(self, name: str) -> list[Registration]:
        """Every version of the table, oldest first."""
        with self._reading() as run:
            return self._select(run, "name = ? ORDER BY sequence", name)

    def tables(self) -> list[Registration]:
        """The newest version of every table, by name."""
        with self._reading() as run:
            return sorted(self._newest(run), key=lambda each: each.table.full_name)

    def tables_in_force(self) -> list[Table]:
        """Every table as it was last registered, by name: not its newest version where an earlier structure came
        back."""
        with self._reading() as run:
            newest = {each.table.full_name: each.table for each in self._newest(run)}
            for name, table in newest.items():
                if (version := self._version_in_force(run, name)) != table.version:
                    newest[name] = self._select(run, "name = ? AND version = ?", name, version)[0].table
        return [newest[name] for name in sorted(newest)]

    def structures(self) -> list[Structure]:
        with self._reading() as run:
            rows = run(
                f"SELECT sequence, position, name, document FROM {self._tables.structures}"
                f" WHERE {self._tables.mine} ORDER BY sequence",
                *self._tables.owner,
            )
        return [Structure(number, Position(position), name, document) for number, position, name, document in rows]

    def keep_structures(self, position: Position, documents: Mapping[str, bytes | None]) -> None:
        tables = self._tables
        with self._writing() as run:
            last = self._last(run, tables.structures)
            for number, (name, document) in enumerate(documents.items(), last + 1):
                run(
                    tables.insert(tables.structures, "sequence", "position", "name", "document"),
                    *tables.owner, number, position, name, document,
                )  # fmt: skip

    def forget_structures(self, after: int) -> None:
        with self._writing() as run:
            run(
                f"DELETE FROM {self._tables.structures} WHERE {self._tables.mine} AND sequence > ?",
                *self._tables.owner, after,
            )  # fmt: skip

    def recall(self, name: str) -> bytes | None:
        with self._reading() as run:
            return self._get(run, name)

    def remember(self, name: str, document: bytes | None) -> None:
        with self._writing() as run:
            self._put(run, name, document)

    def revise(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        """`remember` what `change` makes of what is remembered; of two who revise at once, one sees what the other
        did. `change` must not use this registry, which is locked."""
        with self._writing() as run:
            known = self._get(run, name)
            document = change(known)
            if document != known:
                self._put(run, name, document)

    def sequence(self) -> int:
        """The last number given out, 0 when nothing is registered."""
        with self._reading() as run:
            return self._last(run, self._tables.versions)

    def is_empty(self) -> bool:
        with self._reading() as run:
            return self._has_nothing(run)

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[RegistryStatements]:
        with _explain():
            self._take_over()
            with self._database.reading() as run:
                yield run

    @contextmanager
    def _writing(self) -> Iterator[RegistryStatements]:
        with _explain():
            self._take_over()
            with self._database.writing() as run:
                yield run

    def _take_over(self) -> None:
        """From the earlier file, wholly or not at all; of two processes at it, the second finds what the first did."""
        if self._earlier is None:
            return
        if self._earlier.exists():
            with self._database.writing() as run:
                if self._has_nothing(run):
                    with closing(RegistryFileTables(self._earlier)) as file, file.reading() as old:
                        _copy(old, file.tables, run, self._tables)
        self._earlier = None

    def _has_nothing(self, run: RegistryStatements) -> bool:
        tables = self._tables
        return not any(
            run(f"SELECT name FROM {each} WHERE {tables.mine} LIMIT 1", *tables.owner)
            for each in (tables.versions, tables.structures, tables.memory)
        )

    def _get(self, run: RegistryStatements, name: str) -> bytes | None:
        tables = self._tables
        rows = run(f"SELECT document FROM {tables.memory} WHERE {tables.mine} AND name = ?", *tables.owner, name)
        return rows[0][0] if rows else None

    def _put(self, run: RegistryStatements, name: str, document: bytes | None) -> None:
        tables = self._tables
        run(f"DELETE FROM {tables.memory} WHERE {tables.mine} AND name = ?", *tables.owner, name)
        if document is not None:
            run(tables.insert(tables.memory, "name", "document"), *tables.owner, name, document)

    def _newest(self, run: RegistryStatements) -> list[Registration]:
        tables = self._tables
        newest = f"SELECT max(sequence) FROM {tables.versions} WHERE {tables.mine} GROUP BY name"
        return self._select(run, f"sequence IN ({newest})", *tables.owner)

    def _version_in_force(self, run: RegistryStatements, name: str) -> int:
        """Noted only while it is not the newest."""
        if (noted := self._get(run, f"{_IN_FORCE}{name}")) is not None:
            return int(noted)
        tables = self._tables
        ((newest,),) = run(
            f"SELECT coalesce(max(version), 0) FROM {tables.versions} WHERE {tables.mine} AND name = ?",
            *tables.owner, name,
        )  # fmt: skip
        return int(newest)

    def _last(self, run: RegistryStatements, table: str) -> int:
        statement = f"SELECT coalesce(max(sequence), 0) FROM {table} WHERE {self._tables.mine}"
        ((last,),) = run(statement, *self._tables.owner)
        return int(last)

    def _insert(self, run: RegistryStatements, table: Table, position: Position) -> Table:
        tables = self._tables
        ((count,),) = run(
            f"SELECT count(*) FROM {tables.versions} WHERE {tables.mine} AND name = ?", *tables.owner, table.full_name
        )
        table, sequence = replace(table, version=count + 1), self._last(run, tables.versions) + 1
        run(
            tables.insert(
                tables.versions, "sequence", "name", "version", "fingerprint", "position", "registered_at", "document"
            ),
            *tables.owner, sequence, table.full_name, table.version, table.fingerprint, position,
            datetime.now(UTC).isoformat(timespec="milliseconds"), table.to_json(),
        )  # fmt: skip
        return replace(table, sequence=sequence)

    def _find(self, condition: str, *values: object) -> Registration | None:
        with self._reading() as run:
            found = self._select(run, condition, *values)
        return found[0] if found else None

    def _select(self, run: RegistryStatements, condition: str, *values: object) -> list[Registration]:
        rows = run(
            f"SELECT {_FIELDS} FROM {self._tables.versions} WHERE {self._tables.mine} AND {condition}",
            *self._tables.owner, *values,
        )  # fmt: skip
        return [
            Registration(self._parse(document, sequence, version, fingerprint), Position(position), at)
            for sequence, version, fingerprint, position, at, document in rows
        ]


@contextmanager
def _explain() -> Iterator[None]:
    """Whoever uses a registry need not know that it is in the state store."""
    try:
        yield
    except StateTooNew:
        raise
    except StateError as error:
        raise RegistryError(f"the schema registry: {error.what}", where=error.where, fix=error.fix) from error


def missing_registry(where: str) -> RegistryError:
    return RegistryError(
        "there is no schema registry here", where=where, fix="It is made when the pipeline first runs."
    )


def _copy(old: RegistryStatements, source: RegistryTables, new: RegistryStatements, target: RegistryTables) -> None:
    for was, now, columns in (
        (source.versions, target.versions, ("name", *_FIELDS.split(", "))),
        (source.structures, target.structures, ("sequence", "position", "name", "document")),
        (source.memory, target.memory, ("name", "document")),
    ):
        for row in old(f"SELECT {', '.join(columns)} FROM {was}"):
            new(target.insert(now, *columns), *target.owner, *row)


def _as_it_came(known: Table, wanted: Table) -> Table:
    """The known version, with what is told of its columns now. What is not told any more stays as it was, for the same
    columns."""
    columns = tuple(
        was if now.initial is None and now.origin in ("", was.origin)
        else replace(was, origin=now.origin or was.origin, initial=now.initial)
        for was, now in zip(known.columns, wanted.columns, strict=True)
    )  # fmt: skip
    return replace(known, renamed=wanted.renamed or known.renamed, columns=columns)


def _parse(document: bytes | str, sequence: int, version: int, fingerprint: str) -> Table:
    return replace(Table.from_json(document), sequence=sequence, version=version, fingerprint=fingerprint)
