"""Where a pipeline's dead letters lie: one SQLite file, written by the driver, read by `tidemill dlq` at any time."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemill.dlq.config import DlqConfig
from tidemill.dlq.letter import Letter
from tidemill.errors import DeadLettersFull, DeliveryError
from tidemill.sqlitefile import SqliteFile

# The payload stands last: counting letters and bytes then never reads the pages it overflows to.
_TABLE = """
CREATE TABLE IF NOT EXISTS letters (
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
)
"""
_COLUMNS = (
    "number", "sink", "event_id", "source", "table", "op", "offset", "position", "ordinal", "reason", "attempts",
    "first_at", "last_at", "payload",
)  # fmt: skip
_WHOLE = ", ".join(f'"{name}"' for name in _COLUMNS)
_HEAD = _WHOLE.replace('"payload"', "X''")


@dataclass(frozen=True, slots=True)
class Kept:
    """What `put` did: letters that are new, and letters that had to go for them; without their payloads."""

    new: tuple[Letter, ...] = ()
    dropped: tuple[Letter, ...] = ()

    def __add__(self, more: Kept) -> Kept:
        return Kept(self.new + more.new, self.dropped + more.dropped)


class DeadLetters:
    """For any number of threads and processes."""

    def __init__(self, path: Path, config: DlqConfig | None = None) -> None:
        self.path = path
        self.config = config or DlqConfig()
        self._file = SqliteFile(path, _TABLE, self._unusable)

    def put(self, letters: Sequence[Letter]) -> Kept:
        """All of them or none, durable when it returns. Letters that are there already stay as they are, so that a
        replayed batch changes nothing. `DeadLettersFull` when there is no room, unless the oldest may go for them."""
        now = _now()
        with self._file.writing() as db:
            new = tuple(letter for letter in _distinct(letters) if not _has(db, letter))
            dropped = self._make_room(db, new)
            for letter in new:
                db.execute(
                    "INSERT INTO letters VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        letter.sink, letter.event_id, letter.source, letter.table, letter.op, letter.offset,
                        letter.position, letter.ordinal, letter.reason, letter.attempts, now, now,
                        len(letter.payload), letter.payload,
                    ),
                )  # fmt: skip
        return Kept(tuple(replace(letter, payload=b"") for letter in new), dropped)

    def letters(
        self, *, sink: str | None = None, numbers: Collection[int] = (), limit: int | None = None
    ) -> list[Letter]:
        """In order of their offsets, without their payloads; all of them, or those of a sink or with these numbers."""
        chosen = f" AND number IN ({', '.join('?' * len(numbers))})" if numbers else ""
        with self._file.connected() as db:
            rows = db.execute(
                f'SELECT {_HEAD} FROM letters WHERE (? IS NULL OR sink = ?){chosen} ORDER BY "offset", sink LIMIT ?',
                (sink, sink, *numbers, -1 if limit is None else limit),
            )
            return [_letter(row) for row in rows]

    def letter(self, number: int) -> Letter | None:
        """One of them, whole."""
        with self._file.connected() as db:
            row = db.execute(f"SELECT {_WHOLE} FROM letters WHERE number = ?", (number,)).fetchone()
            return _letter(row) if row else None

    def remove(self, numbers: Collection[int]) -> int:
        with self._file.writing() as db:
            return sum(db.execute("DELETE FROM letters WHERE number = ?", (number,)).rowcount for number in numbers)

    def tried(self, number: int, reason: str) -> None:
        """Delivered again in vain."""
        with self._file.writing() as db:
            db.execute(
                "UPDATE letters SET attempts = attempts + 1, reason = ?, last_at = ? WHERE number = ?",
                (reason, _now(), number),
            )

    def count(self) -> dict[str, int]:
        """Letters per sink."""
        with self._file.connected() as db:
            return dict(db.execute("SELECT sink, count(*) FROM letters GROUP BY sink ORDER BY sink").fetchall())

    def close(self) -> None:
        self._file.close()

    def _make_room(self, db: sqlite3.Connection, new: Sequence[Letter]) -> tuple[Letter, ...]:
        there, size = db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM letters").fetchone()
        there, size = there + len(new), size + sum(len(letter.payload) for letter in new)
        limits = self.config
        if there <= limits.max_letters and size <= limits.max_bytes:
            return ()
        alone = sum(len(letter.payload) for letter in new)
        if limits.overflow != "drop_oldest" or len(new) > limits.max_letters or alone > limits.max_bytes:
            raise DeadLettersFull(
                f"no room for {len(new)} more dead letters: they would be {there} with {size} bytes, the limits are "
                f"{limits.max_letters} and {limits.max_bytes}",
                where=str(self.path),
                fix='Make room with "tidemill dlq replay" or "tidemill dlq purge", or raise dlq.max_letters and '
                "dlq.max_bytes.",
            )
        dropped = []
        for weight, *row in db.execute(f"SELECT bytes, {_HEAD} FROM letters ORDER BY number"):
            if there <= limits.max_letters and size <= limits.max_bytes:
                break
            dropped.append(_letter(row))
            there, size = there - 1, size - weight
        db.executemany("DELETE FROM letters WHERE number = ?", [(oldest.number,) for oldest in dropped])
        return tuple(dropped)

    def _unusable(self, error: str) -> DeliveryError:
        return DeliveryError(
            f"the dead letters cannot be read or written: {error}",
            where=str(self.path),
            fix="Check the file's permissions and the free space. Nothing is lost: the batch waits.",
        )


def _has(db: sqlite3.Connection, letter: Letter) -> bool:
    found = db.execute("SELECT 1 FROM letters WHERE sink = ? AND event_id = ?", (letter.sink, letter.event_id))
    return found.fetchone() is not None


def _distinct(letters: Sequence[Letter]) -> list[Letter]:
    return list({(letter.sink, letter.event_id): letter for letter in letters}.values())


def _letter(row: Sequence[Any]) -> Letter:
    return Letter(**dict(zip(_COLUMNS, row, strict=True)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
