"""All of a state store as lines of JSON, and back: to move an installation from SQLite to PostgreSQL or the other way.

    {"tidemill_state": 1, "version": 14, …}     the format, and the version of the tables
    {"table": "tokens", "columns": ["id", …]}   the lines that follow are rows of this table
    ["a1b2c3d4", "ann", …]                      bytes are {"base64": "…"}
    {"rows": 412, "sha256": "…"}                how many there were; a file without this line is cut off

A file is read into a store that has nothing, at the file's own version, and brought up to ours by the same steps as a
store of that age. Who holds a lease is not moved, nor what processes say to each other; fencing numbers are, and go on
rising.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tidemill.errors import ConfigError, StateTooNew
from tidemill.state import migrations
from tidemill.state.migrations import Rows
from tidemill.state.store import Database

FORMAT = 1
_LEFT_OUT = frozenset({"lease_holders", "published_statuses", "server_requests", "key_claims"})
_TABLE = re.compile(r"(CREATE|DROP) TABLE (\w+)")
_NAME = re.compile(r"[a-z_]+")


@dataclass(frozen=True, slots=True)
class Transferred:
    """`version` of the tables; `rows` by table, those without rows too."""

    version: int
    rows: dict[str, int]


def tables(version: int) -> list[str]:
    """Those of a store of this version that are moved, in the order in which they came."""
    found: dict[str, None] = {}
    for step in migrations.MIGRATIONS:
        for statement in step.statements if step.version <= version else ():
            if change := _TABLE.match(statement):
                found.pop(change[2], None) if change[1] == "DROP" else found.setdefault(change[2])
    return [name for name in found if name not in _LEFT_OUT]


def export_lines(database: Database, header: dict[str, Any]) -> Iterator[bytes]:
    """Of one moment, whoever writes meanwhile. The store must be there."""
    digest, count = hashlib.sha256(), 0
    with database.snapshot() as run:
        for line in _lines(run, database.columns_query, header):
            count += line.startswith(b"[")
            digest.update(line)
            yield line
    yield _line({"rows": count, "sha256": digest.hexdigest()})


def import_lines(database: Database, lines: Iterable[bytes], where: str) -> Transferred:
    """All or nothing. `ConfigError` if the store has anything, or if the file is not whole."""
    content = _Checked(lines, where)
    header = content.header()
    version = header["version"]
    if version > migrations.latest():
        raise StateTooNew(
            f"the file is of version {version}, and this Tidemill knows versions up to {migrations.latest()}",
            where=where, fix="Run the version of Tidemill that wrote it, or a newer one. Nothing was changed.",
        )  # fmt: skip
    with database.preparing() as run:
        _make_empty(run, database, version)
        rows = _insert_all(run, content, tables(version))
        run("UPDATE pipeline_leases SET holder = ''")
        migrations.migrate(run, database.where)
    return Transferred(migrations.latest(), rows)


def count_rows(lines: Iterable[bytes]) -> Transferred:
    """What a file has, read back."""
    content = _Checked(lines, "the file just written")
    version, counts, table = content.header()["version"], dict[str, int](), ""
    for entry in content:
        if isinstance(entry, dict):
            table = entry["table"]
        counts[table] = counts.get(table, -1) + 1
    return Transferred(version, counts)


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The newest transition of a pipeline; empty where it has none."""

    pipeline: str
    state: str = ""
    actor: str = ""
    at: str = ""


def recorded_states(database: Database) -> list[RecordedState]:
    """Of every pipeline that the store knows, by name."""
    with database.reading() as run:
        found = run(
            "SELECT t.pipeline, t.state, t.actor, t.at FROM transitions t WHERE t.sequence ="
            " (SELECT MAX(n.sequence) FROM transitions n WHERE n.pipeline = t.pipeline)"
        )
        names = [name for (name,) in run("SELECT pipeline FROM pipelines")]
    recorded = {row[0]: RecordedState(*row) for row in found}
    return [recorded.get(name, RecordedState(name)) for name in sorted({*names, *recorded})]


def _lines(run: Rows, columns_query: str, header: dict[str, Any]) -> Iterator[bytes]:
    version = migrations.version_of(run)
    yield _line({"tidemill_state": FORMAT, "version": version, **header})
    for table in tables(version):
        columns = [name for (name,) in run(columns_query, table)]
        quoted = _quote(columns)
        yield _line({"table": table, "columns": columns})
        for row in run(f"SELECT {quoted} FROM {table} ORDER BY {quoted}"):
            yield _line(row)


def _make_empty(run: Rows, database: Database, version: int) -> None:
    """The tables as they were at `version`, without a row."""
    there = database.version_in(run)
    if there == 0:
        migrations.migrate(run, database.where, through=version)
        return
    used = [table for table in tables(there) if run(f"SELECT 1 FROM {table} LIMIT 1")]
    if used:
        raise ConfigError(
            f"the store is in use: it has rows of {', '.join(used)}", where=database.where,
            fix="Nothing was changed. Import into a store that is not there yet: another file, another database, or "
            "another schema (?schema=NAME).",
        )  # fmt: skip
    if there != version:
        raise ConfigError(
            f"the store is at version {there} and the file at {version}", where=database.where,
            fix="Nothing was changed. Import into a store that is not there yet; it is brought up to date then.",
        )  # fmt: skip


def _insert_all(run: Rows, content: _Checked, known: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    table, insert, width = "", "", 0
    for entry in content:
        if isinstance(entry, dict):
            table, columns = entry["table"], entry["columns"]
            if table not in known or table in counts:
                raise content.refuse(f'it has a table "{table}" that a store of its version has not')
            counts[table], width = 0, len(columns)
            insert = f"INSERT INTO {table} ({_quote(columns)}) VALUES ({', '.join('?' * width)})"
        elif table and len(entry) == width:
            run(insert, *(content.value(each) for each in entry))
            counts[table] += 1
        else:
            raise content.refuse("a row is not of its table")
    return counts


class _Checked:
    """The lines of a file between its header and its last line, which must be true of them."""

    def __init__(self, lines: Iterable[bytes], where: str) -> None:
        self._lines, self._where = iter(lines), where
        self._digest, self._number = hashlib.sha256(), 0

    def header(self) -> dict[str, Any]:
        found = self._parse(next(self._lines, b""))
        given = found.get("tidemill_state") if isinstance(found, dict) else None
        if given != FORMAT:
            raise self.refuse("it does not begin as one" if given is None else f"its format is {given}, ours {FORMAT}")
        if type(version := found.get("version")) is not int or version < 1:
            raise self.refuse("its version is no number of a version")
        return dict(found)

    def __iter__(self) -> Iterator[Any]:
        rows = 0
        for line in self._lines:
            before = self._digest.hexdigest()
            found = self._parse(line)
            if isinstance(found, dict) and "sha256" in found:
                if found != {"rows": rows, "sha256": before} or next(self._lines, b""):
                    raise self.refuse("it was changed after it was written")
                return
            if not isinstance(found, list) and not _is_table(found):
                raise self.refuse("the line is neither a table nor a row")
            rows += isinstance(found, list)
            yield found
        raise self.refuse("its end is missing")

    def value(self, found: Any) -> Any:
        """Of a row, as the database takes it."""
        match found:
            case {"base64": str(text)}:
                try:
                    return b64decode(text, validate=True)
                except ValueError as error:
                    raise self.refuse("bytes of a row are not in base64") from error
            case dict() | list():
                raise self.refuse("a value of a row is none of a state store")
        return found

    def refuse(self, why: str) -> ConfigError:
        return ConfigError(
            f"the file is no export of a state store: {why}", where=f"{self._where}:{self._number}",
            fix="Nothing was changed. Export it again: tidemill state export FILE.",
        )  # fmt: skip

    def _parse(self, line: bytes) -> Any:
        self._number += 1
        self._digest.update(line)
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise self.refuse("the line is not JSON") from error


def _is_table(found: Any) -> bool:
    match found:
        case {"table": str(), "columns": list(columns)}:
            return all(isinstance(name, str) and _NAME.fullmatch(name) for name in columns)
    return False


def _line(content: Any) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE, default=_bytes_as_text)


def _bytes_as_text(value: Any) -> dict[str, str]:
    if not isinstance(value, bytes | memoryview):
        raise TypeError(f"{type(value).__name__} is no value of a state store")
    return {"base64": b64encode(value).decode()}


def _quote(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)  # "offset" is a word of SQL
