"""Keeps a pipeline's dead letter records in one SQLite file, `dlq.sqlite`.

The driver writes it; `tidemill dlq` reads it at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidemill.disk.sqlite import SqliteFile
from tidemill.dlq.config import DlqConfig
from tidemill.dlq.record import DeadLetterRecord
from tidemill.errors import DeadLettersFull, DeliveryError
from tidemill.model.clock import utc_now
from tidemill.model.position import Offset

# The payload stands last: counting dead letters and bytes then never reads the pages it overflows to.
_TABLE = """
CREATE TABLE IF NOT EXISTS dead_letters (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    sink     TEXT NOT NULL,
    event_id TEXT NOT NULL,
    source   TEXT NOT NULL,
    "table"  TEXT NOT NULL,
    op       TEXT NOT NULL,
    "offset" INTEGER NOT NULL,
    position TEXT NOT NULL,
    ordinal  INTEGER NOT NULL,
    reason   TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    first_at TEXT NOT NULL,
    last_at  TEXT NOT NULL,
    bytes    INTEGER NOT NULL,
    payload  BLOB NOT NULL,
    UNIQUE (sink, event_id)
);
-- What became of a dead letter's keys since it was kept; those of versions that did not follow them have no line.
CREATE TABLE IF NOT EXISTS followed (
    number        INTEGER PRIMARY KEY,
    since         INTEGER NOT NULL,
    superseded    TEXT NOT NULL DEFAULT '',
    superseded_by INTEGER,
    keys          TEXT NOT NULL DEFAULT '',
    stage         TEXT NOT NULL DEFAULT 'deliver'
)
"""
_RENAMED = {"letters": "dead_letters"}
"""Tables of files that older versions made."""
_ADDED = {"followed": {"stage": "TEXT NOT NULL DEFAULT 'deliver'"}}
_COLUMNS = (
    "number", "sink", "event_id", "source", "table", "op", "offset", "position", "ordinal", "reason", "attempts",
    "first_at", "last_at", "payload",
)  # fmt: skip
_WHOLE = (
    ", ".join(f'dead_letters."{name}"' for name in _COLUMNS)
    + ", coalesce(superseded, ''), superseded_by, since, coalesce(stage, 'deliver')"
)
_HEAD = _WHOLE.replace('dead_letters."payload"', "X''")
_FROM = "dead_letters LEFT JOIN followed ON followed.number = dead_letters.number"


@dataclass(frozen=True, slots=True)
class Kept:
    """What `put` did: dead letters that are new, and dead letters that had to go for them; without their payloads."""

    new: tuple[DeadLetterRecord, ...] = ()
    dropped: tuple[DeadLetterRecord, ...] = ()

    def __add__(self, more: Kept) -> Kept:
        return Kept(self.new + more.new, self.dropped + more.dropped)


@dataclass(frozen=True, slots=True)
class Mark:
    """A record is `superseded` (partly, wholly) by an event; `keys` is what its follower knows, for the next start."""

    number: int
    superseded: str
    by: Offset
    keys: str


class DeadLetters:
    """For any number of threads and processes."""

    def __init__(self, path: Path, config: DlqConfig | None = None) -> None:
        self.path = path
        self.config = config or DlqConfig()
        self._file = SqliteFile(path, _TABLE, self._unusable, renamed=_RENAMED, added=_ADDED)

    def put(self, dead_letters: Sequence[DeadLetterRecord]) -> Kept:
        """All of them or none, durable when it returns. Records that are there already stay as they are, so that a
        replayed batch changes nothing. `DeadLettersFull` when there is no room, unless the oldest may go for them."""
        now = utc_now()
        with self._file.writing() as db:
            new = tuple(dead_letter for dead_letter in _distinct(dead_letters) if not _has(db, dead_letter))
            dropped = self._make_room(db, new)
            for dead_letter in new:
                added = db.execute(
                    "INSERT INTO dead_letters VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        dead_letter.sink, dead_letter.event_id, dead_letter.source, dead_letter.table, dead_letter.op,
                        dead_letter.offset,
                        dead_letter.position, dead_letter.ordinal, dead_letter.reason, dead_letter.attempts, now, now,
                        len(dead_letter.payload), dead_letter.payload,
                    ),
                )  # fmt: skip
                db.execute(
                    "INSERT INTO followed (number, since, stage) VALUES (?, ?, ?)",
                    (added.lastrowid, dead_letter.offset, dead_letter.stage),
                )
        return Kept(tuple(replace(dead_letter, payload=b"") for dead_letter in new), dropped)

    def dead_letters(
        self,
        *,
        sink: str | None = None,
        numbers: Collection[int] = (),
        after: tuple[Offset, int] | None = None,
        limit: int | None = None,
    ) -> list[DeadLetterRecord]:
        """In order of their offsets, then numbers, without their payloads; all of them, or those of a sink, with these
        numbers, or `after` the one that has or had this offset and number."""
        chosen = f" AND dead_letters.number IN ({', '.join('?' * len(numbers))})" if numbers else ""
        chosen += ' AND ("offset", dead_letters.number) > (?, ?)' if after else ""
        with self._file.connected() as db:
            rows = db.execute(
                f"SELECT {_HEAD} FROM {_FROM} WHERE (? IS NULL OR sink = ?){chosen}"
                ' ORDER BY "offset", dead_letters.number LIMIT ?',
                (sink, sink, *numbers, *(after or ()), -1 if limit is None else limit),
            )
            return [_dead_letter(row) for row in rows]

    def dead_letter(self, number: int) -> DeadLetterRecord | None:
        """One of them, whole."""
        with self._file.connected() as db:
            row = db.execute(f"SELECT {_WHOLE} FROM {_FROM} WHERE dead_letters.number = ?", (number,)).fetchone()
            return _dead_letter(row) if row else None

    def remove(self, numbers: Collection[int]) -> int:
        with self._file.writing() as db:
            return _delete(db, numbers)

    def open_dead_letters(self, sinks: Collection[str], after: int = 0) -> list[tuple[DeadLetterRecord, str]]:
        """Those of these sinks that may yet be superseded (not wholly), without payloads, each with what its follower
        left; of dead letters with a number above `after`."""
        chosen = ", ".join("?" * len(sinks))
        with self._file.connected() as db:
            rows = db.execute(
                f"SELECT coalesce(keys, ''), {_HEAD} FROM {_FROM} WHERE dead_letters.number > ? AND sink IN ({chosen}) "
                "AND coalesce(superseded, '') <> 'wholly' ORDER BY dead_letters.number",
                (after, *sinks),
            )
            return [(_dead_letter(row), keys) for keys, *row in rows]

    def follow(self, dead_letters: Sequence[tuple[int, Offset, str]]) -> None:
        """(number, since, keys) each; `since` counts only for a dead letter that was not followed before."""
        with self._file.writing() as db:
            db.executemany(
                "INSERT INTO followed (number, since, keys) VALUES (?, ?, ?) "
                "ON CONFLICT (number) DO UPDATE SET keys = excluded.keys",
                dead_letters,
            )

    def mark(self, marks: Sequence[Mark]) -> None:
        """All of them, durable when it returns. Records that are gone by now are left out."""
        with self._file.writing() as db:
            db.executemany(
                "UPDATE followed SET superseded = ?, superseded_by = ?, keys = ? WHERE number = ?",
                [(mark.superseded, mark.by, mark.keys, mark.number) for mark in marks],
            )
            db.executemany(  # of a dead letter that nobody follows yet
                "INSERT OR IGNORE INTO followed (number, since, superseded, superseded_by, keys) "
                'SELECT number, "offset", ?, ?, ? FROM dead_letters WHERE number = ?',
                [(mark.superseded, mark.by, mark.keys, mark.number) for mark in marks],
            )

    def note_failure(self, number: int, reason: str) -> None:
        """Delivered again in vain."""
        with self._file.writing() as db:
            db.execute(
                "UPDATE dead_letters SET attempts = attempts + 1, reason = ?, last_at = ? WHERE number = ?",
                (reason, utc_now(), number),
            )

    def count(self) -> dict[str, int]:
        """Records per sink."""
        with self._file.connected() as db:
            return dict(db.execute("SELECT sink, count(*) FROM dead_letters GROUP BY sink ORDER BY sink").fetchall())

    def close(self) -> None:
        self._file.close()

    def _make_room(self, db: sqlite3.Connection, new: Sequence[DeadLetterRecord]) -> tuple[DeadLetterRecord, ...]:
        there, size = db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM dead_letters").fetchone()
        there, size = there + len(new), size + sum(len(dead_letter.payload) for dead_letter in new)
        limits = self.config
        if there <= limits.max_letters and size <= limits.max_bytes:
            return ()
        alone = sum(len(dead_letter.payload) for dead_letter in new)
        if limits.overflow != "drop_oldest" or len(new) > limits.max_letters or alone > limits.max_bytes:
            raise DeadLettersFull(
                f"no room for {len(new)} more dead letters: they would be {there} with {size} bytes, the limits are "
                f"{limits.max_letters} and {limits.max_bytes}",
                where=str(self.path),
                fix='Make room with "tidemill dlq replay" or "tidemill dlq purge", or raise dlq.max_letters and '
                "dlq.max_bytes.",
            )
        dropped = []
        for weight, *row in db.execute(f"SELECT bytes, {_HEAD} FROM {_FROM} ORDER BY dead_letters.number"):
            if there <= limits.max_letters and size <= limits.max_bytes:
                break
            dropped.append(_dead_letter(row))
            there, size = there - 1, size - weight
        _delete(db, [oldest.number for oldest in dropped])
        return tuple(dropped)

    def _unusable(self, error: str) -> DeliveryError:
        return DeliveryError(
            f"the dead letters cannot be read or written: {error}",
            where=str(self.path),
            fix="Check the file's permissions and the free space. Nothing is lost: the batch waits.",
        )


def _has(db: sqlite3.Connection, dead_letter: DeadLetterRecord) -> bool:
    found = db.execute(
        "SELECT 1 FROM dead_letters WHERE sink = ? AND event_id = ?", (dead_letter.sink, dead_letter.event_id)
    )
    return found.fetchone() is not None


def _delete(db: sqlite3.Connection, numbers: Collection[int]) -> int:
    for number in numbers:
        db.execute("DELETE FROM followed WHERE number = ?", (number,))
    return sum(db.execute("DELETE FROM dead_letters WHERE number = ?", (number,)).rowcount for number in numbers)


def _distinct(dead_letters: Sequence[DeadLetterRecord]) -> list[DeadLetterRecord]:
    return list({(dead_letter.sink, dead_letter.event_id): dead_letter for dead_letter in dead_letters}.values())


def _dead_letter(row: Sequence[Any]) -> DeadLetterRecord:
    *columns, superseded, by, since, stage = row
    return DeadLetterRecord(
        **dict(zip(_COLUMNS, columns, strict=True)),
        superseded=superseded, superseded_by=by, followed_from=since, stage=stage,
    )  # fmt: skip
