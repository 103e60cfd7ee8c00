"""What `tidemill doctor` says about a SQLite source. Looks only."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidemill.contracts import Check, Outcome, Resting
from tidemill.errors import TidemillError
from tidemill.sources._shared.sqlite_catalog import read_table, table_names
from tidemill.sources._shared.sqlite_names import check_names, full_name, is_selected, list_names
from tidemill.sources._shared.sqlite_source import check_waiting
from tidemill.sources._shared.sqlite_statements import tokenize
from tidemill.sources.sqlite import resume
from tidemill.sources.sqlite.client import connect
from tidemill.sources.sqlite.errors import translate
from tidemill.sources.sqlite.file_watch import FileWatch
from tidemill.sources.sqlite.limits import find_limits, find_obstacle
from tidemill.sources.sqlite.native import load_library
from tidemill.sources.sqlite.specs import MadeTriggers, find_misplaced, read_writes
from tidemill.sources.sqlite.triggers import CHANGES, READERS, SHAPES, trigger_name

if TYPE_CHECKING:
    from tidemill.sources.sqlite import SqliteFileConfig

_MANY = 1_000_000


def run_checks(config: SqliteFileConfig, resting: Resting | None = None) -> Iterator[Check]:
    try:
        db = connect(config.path, config.where, config.busy_timeout_seconds)
    except TidemillError as error:
        yield Check("file", Outcome.FAIL, error.what, error.fix)
        return
    with contextlib.closing(db):
        try:
            with translate(config.where):
                yield from _file(db, config)
                yield from _tables(db, config)
                yield from _check_recording(db, config)
                yield _position(db, config, resting)
        except TidemillError as error:
            yield Check("file", Outcome.FAIL, error.what, error.fix)


def _file(db: sqlite3.Connection, config: SqliteFileConfig) -> Iterator[Check]:
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    yield Check("file", Outcome.PASS, f"{config.path}, SQLite {sqlite3.sqlite_version}")
    if not os.access(config.path, os.W_OK) or not os.access(config.path.resolve().parent, os.W_OK):
        yield Check(
            "permissions", Outcome.FAIL, "the file or its folder may not be written",
            "Triggers and their table are made in the file: let this account write both.",
        )  # fmt: skip
    if mode == "wal":
        yield Check("journal_mode", Outcome.PASS, "wal: reading and writing do not wait for each other")
    else:
        yield Check(
            "journal_mode", Outcome.WARN, f"{mode}: a read of ours makes a commit wait, and the other way round",
            "Run once: PRAGMA journal_mode = WAL; it stays in the file.",
        )  # fmt: skip
    if load_library() is None:
        yield Check(
            "reader", Outcome.WARN, "this Python has SQLite built in: changes are read row by row, half as fast",
            "Use a Python that is linked to libsqlite3, such as the system's.",
        )  # fmt: skip
    watch = FileWatch(config.path, config.poll_seconds)
    if watch.notified:
        yield Check("notices", Outcome.PASS, "inotify says when the file is written")
    else:
        yield Check(
            "notices", Outcome.WARN, "the system gives no notices of writes: the file is looked at now and then",
            f"A change after a quiet time waits for up to {config.poll_seconds} s (poll_seconds). On Linux with many"
            " pipelines, raise fs.inotify.max_user_instances.",
        )  # fmt: skip
    watch.close()


def _tables(db: sqlite3.Connection, config: SqliteFileConfig) -> Iterator[Check]:
    every = list(table_names(db))
    names = [name for name in every if is_selected(config.patterns, name)]
    yield from check_names(config.patterns, every, config.snapshot)
    tables = [read_table(db, name) for name in names]
    if bare := [table.name for table in tables if not table.key]:
        yield Check(
            "keys", Outcome.WARN, f"no primary key on {list_names(bare)}",
            "Their events have no key: order is kept per table only, and state sinks cannot update. Add a primary key."
            " The rowid is none: VACUUM may change it.",
        )  # fmt: skip
    else:
        yield Check("keys", Outcome.PASS, "every table has a primary key")
    for table in tables:
        if why := find_obstacle(table):
            yield Check("tables", Outcome.FAIL, *why)
    for notice in find_limits(db, config.patterns):
        yield Check(notice.code, Outcome.WARN, notice.what, notice.fix)


def _check_recording(db: sqlite3.Connection, config: SqliteFileConfig) -> Iterator[Check]:
    if resume.identity(db) is None:
        yield Check("triggers", Outcome.PASS, "none yet: they are made when the pipeline starts")
        return
    rows = db.execute(f"SELECT name, shape FROM {SHAPES} WHERE current").fetchall()
    if broken := list(_find_broken(db, rows)):
        yield Check(
            "triggers", Outcome.FAIL, f"writes to {list_names(broken)} fail: the table was renamed with PRAGMA"
            " legacy_alter_table = ON, which leaves its old name in our triggers",
            'Start the pipeline: it makes them again. Or take them out: "tidemill source remove FILE".',
        )  # fmt: skip
    writes, made = read_writes(db), MadeTriggers.read(db)
    newer = {n: find_misplaced(made, n, shape, writes).late for n, shape in rows if is_selected(config.patterns, n)}
    if late := [f"{trigger.name} on {full_name(name)}" for name, found in newer.items() for trigger in found]:
        yield Check(
            "triggers", Outcome.WARN, f"made after ours, and run before them: {', '.join(late[:5])}",
            "Start the pipeline before programs write: it makes its own again. Until then what such a trigger writes to"
            " the same table is recorded before the change that it follows from.",
        )  # fmt: skip
    last = resume.last_number(db)
    (first,) = db.execute(f"SELECT min(change_id) FROM {CHANGES}").fetchone()
    kept = last - first + 1 if first is not None else 0
    readers = dict(db.execute(f"SELECT name, confirmed FROM {READERS}").fetchall())
    others = [f'"{name}" (at {confirmed} of {last})' for name, confirmed in readers.items() if name != config.id]
    if kept > _MANY and others:
        yield Check(
            "change table", Outcome.WARN, f"{kept} changes are kept, also for {', '.join(others)}",
            'Start these pipelines, or take them out: "tidemill source remove FILE".',
        )  # fmt: skip
    else:
        yield Check("change table", Outcome.PASS, f"{kept} changes are kept")


def _find_broken(db: sqlite3.Connection, shapes: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Tables whose triggers still name the table as it was called."""
    for name, shape in shapes:
        found = db.execute(
            "SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?",
            [trigger_name(shape, "after_insert")],
        ).fetchone()
        if found and found[0] != name and any(token.word == name.lower() for token in tokenize(found[1])):
            yield str(found[0])


def _position(db: sqlite3.Connection, config: SqliteFileConfig, resting: Resting | None) -> Check:
    if resting is None:
        return Check("position", Outcome.PASS, "none yet: capture begins now")
    try:
        place = resume.further(resting.after, resting.confirmed, config.where)
        resume.check(db, place, config.id, config.where)
    except TidemillError as error:
        return Check("position", Outcome.FAIL, error.what, error.fix)
    return check_waiting(resume.last_number(db) - place.number)
