"""Positions of a SQLite file, and whether the file still has all that follows one.

1547/1763365136123@3f9a0c5d7b21e468  change 1547, recorded at that millisecond, of the file with that identity

Number and identity say where it is; the millisecond gives a restored copy away. It is 0 where it is not known, and may
be left out where somebody types a position.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass

from tidemill.errors import ConfigError
from tidemill.model.position import Ordering, Position
from tidemill.sources.sqlite.errors import RECOVER, ChangesRemoved, FileReplaced
from tidemill.sources.sqlite.triggers import CHANGES, META, READERS, SHAPES

#: A statement that fails in the middle (OR FAIL) keeps its rows, and SQLite does not note their numbers in the counter.
LAST_NUMBER = (
    f"SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = '{CHANGES}'), 0),"
    f" coalesce((SELECT max(change_id) FROM {CHANGES}), 0))"
)
_IDENTITY = (
    f"SELECT value FROM {META} WHERE name = 'identity'"
    f" AND NOT EXISTS (SELECT 1 FROM {CHANGES}, {SHAPES}, {READERS} LIMIT 0)"  # it names all that must be there
)
_FORM = re.compile(r"(\d{1,19})(?:/(\d{1,19}))?@([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class SqlitePlace:
    """After change `number`. `witness` is when that was recorded, 0 where it is not known."""

    number: int
    witness: int
    file: str

    @classmethod
    def parse(cls, position: str, where: str = "") -> SqlitePlace:
        found = _FORM.fullmatch(position)
        if not found:
            raise ConfigError(
                f'"{position}" is no position of a SQLite file', where=where,
                fix="It looks like 1547/1763365136123@3f9a0c5d7b21e468: the number of a change, the millisecond in"
                " which it was recorded (may be left out), and the identity of the file.",
            )  # fmt: skip
        return cls(int(found[1]), int(found[2] or 0), found[3])

    def text(self) -> Position:
        return Position(f"{self.number}/{self.witness}@{self.file}")


def compare(a: Position, b: Position) -> Ordering | None:
    one, other = SqlitePlace.parse(a), SqlitePlace.parse(b)
    if one.file != other.file:
        return None
    if one.number == other.number:
        parted = one.witness and other.witness and one.witness != other.witness
        return None if parted else Ordering.SAME
    return Ordering.BEFORE if one.number < other.number else Ordering.AFTER


def identity(db: sqlite3.Connection) -> str | None:
    """None where nothing was set up, or somebody dropped a part of it. Asked at each look, and so not of sqlite_schema,
    which has no index."""
    try:
        row = db.execute(_IDENTITY).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return None
    return str(row[0]) if row else None


def last_number(db: sqlite3.Connection) -> int:
    """Of the last change that was recorded. The counter stays when changes are removed."""
    (number,) = db.execute(LAST_NUMBER).fetchone()
    return int(number)


def place_of(db: sqlite3.Connection, number: int, file: str) -> SqlitePlace:
    row = db.execute(f"SELECT at FROM {CHANGES} WHERE change_id = ?", [number]).fetchone()
    return SqlitePlace(number, int(row[0]) if row else 0, file)


def further(after: Position, confirmed: Position | None, where: str) -> SqlitePlace:
    """An idle stream has nothing to append to the log: what it passed over was confirmed, and may be removed by now."""
    place = SqlitePlace.parse(after, where)
    if confirmed is None:
        return place
    last = SqlitePlace.parse(confirmed, where)
    return last if last.file == place.file and last.number > place.number else place


def check(db: sqlite3.Connection, place: SqlitePlace, reader: str, where: str) -> None:
    """Whether everything after `place` is there, and it is the same history (invariant 7)."""
    check_file(db, place, reader, where)
    last, seen = last_number(db), place_of(db, place.number, place.file).witness
    if seen and place.witness and seen != place.witness:
        raise FileReplaced(
            f"change {place.number} of this file is not the one that we have seen: an older copy was restored, and has"
            " gone on from there", where=where, fix=RECOVER,
        )  # fmt: skip
    (first,) = db.execute(f"SELECT min(change_id) FROM {CHANGES}").fetchone()
    if last > place.number and (first is None or first > place.number + 1):
        raise ChangesRemoved(
            f"changes {place.number + 1} to {(first or last + 1) - 1} are gone from the change table", where=where,
            fix=RECOVER,
        )  # fmt: skip


def check_file(db: sqlite3.Connection, place: SqlitePlace, reader: str, where: str) -> None:
    """Whether it is the file that was captured, and still records for us."""
    found = identity(db)
    if found is None:
        raise FileReplaced(
            "the file has no change table any more, or not all that belongs to it: it was removed, or this is another"
            " file", where=where,
            fix=f"Check `path`. If the file was replaced on purpose: {RECOVER}",
        )  # fmt: skip
    if found != place.file:
        raise FileReplaced(
            f"this is another file than the one that was captured: its identity is {found}, ours {place.file}",
            where=where, fix=f"Check `path`. If the file was replaced on purpose: {RECOVER}",
        )  # fmt: skip
    last = last_number(db)
    if last < place.number:
        raise FileReplaced(
            f"the file ends at change {last}, we have seen change {place.number}: an older copy was restored",
            where=where, fix=RECOVER,
        )  # fmt: skip
    if not db.execute(f"SELECT 1 FROM {READERS} WHERE name = ?", [reader]).fetchone():
        raise ChangesRemoved(
            f'the file does not know the reader "{reader}" any more: its changes were not kept', where=where,
            fix=f"Somebody removed the set-up. {RECOVER}",
        )  # fmt: skip
