"""Which rows were written since a recovery began: the others are removed when it ends (contracts/recovery.py).

PostgreSQL's rows carry no version of ours. So the keys that are written meanwhile are kept beside them, in a table of
the key's own types, and in the transaction that writes the rows: what equals a key is decided by the target's types, as
it is for the rows. A writer holds the table's note in `tidemill_recoveries` with FOR SHARE, who removes holds it with
FOR UPDATE: nobody writes a row whose key is not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemill.errors import Refused
from tidemill.model.position import Offset
from tidemill.sinks.postgres.target import Target, TargetUnique, columns, target_uniques
from tidemill.telemetry.events import emit

if TYPE_CHECKING:
    from psycopg import sql

    from tidemill.sinks._shared.pg_client import Connection

_TABLE = "tidemill_recoveries"
_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    schema_name text NOT NULL,
    table_name text NOT NULL,
    since bigint NOT NULL,
    keys_name text NOT NULL,
    key_columns text[] NOT NULL,
    PRIMARY KEY (schema_name, table_name)
)
"""


@dataclass(frozen=True, slots=True)
class KeptKeys:
    """Keys of one target that events from `since` on have written, in the table `name`. Without `columns` they are not
    known: the target's key became another one."""

    schema: str
    name: str
    since: Offset
    columns: tuple[str, ...]
    uniques: tuple[TargetUnique, ...] = ()  # of the target, besides its key

    @property
    def identifier(self) -> sql.Identifier:
        from psycopg import sql

        return sql.Identifier(self.schema, self.name)

    def note(self, db: Connection, stage: sql.Identifier, offsets: np.ndarray[Any, Any]) -> None:
        """Keys of rows that stand in the temporary table, except of those that are deleted; `offsets` are of its rows,
        in order. Those of events before the recovery do not count."""
        from psycopg import sql

        if (late := self._late(offsets)) is None:
            return
        names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        db.execute(
            sql.SQL('INSERT INTO {} SELECT {} FROM {} WHERE "tidemill set" <> 0 AND {}').format(
                self.identifier, names, stage, late
            )
        )

    def make_room(self, db: Connection, stage: sql.Identifier, place: sql.Identifier, names: Collection[str],
                  offsets: np.ndarray[Any, Any]) -> None:  # fmt: skip
        """Rows of the temporary table are about to be written. One of the target that has a unique value of theirs, and
        that nothing has written since the recovery began, lost that value in the gap: it is not in the source any more,
        or its row with another value is still to come. `names` are the columns of the temporary table."""
        from psycopg import sql

        uniques = [unique for unique in self.uniques if unique.columns <= set(names)]
        if not uniques or (late := self._late(offsets)) is None:
            return
        for unique in uniques:
            # Bare names are the target's outside the inner SELECT, and the temporary table's in it.
            terms, predicate = sql.SQL(", ").join(map(sql.SQL, unique.terms)), sql.SQL(unique.predicate)
            db.execute(
                sql.SQL(
                    'DELETE FROM {} t WHERE ({}) IN (SELECT {} FROM {} WHERE "tidemill set" <> 0 AND {} AND ({}))'
                    " AND ({}) AND NOT EXISTS (SELECT FROM {} s WHERE {}) AND NOT EXISTS (SELECT FROM {} k WHERE {})"
                ).format(
                    place, terms, terms, stage, late, predicate, predicate, stage, _same("s", "t", self.columns),
                    self.identifier, _same("k", "t", self.columns),
                )
            )  # fmt: skip

    def _late(self, offsets: np.ndarray[Any, Any]) -> sql.Composable | None:
        """A condition on rows of the temporary table: events since the recovery began. None: there are none."""
        from psycopg import sql

        late = offsets >= np.uint64(self.since)
        if late.all():
            return sql.SQL("true")
        return sql.SQL('"tidemill row" = ANY ({})').format(np.flatnonzero(late).tolist()) if late.any() else None

    def make_way(self, db: Connection, target: Target, stage: sql.Identifier, offset: Offset) -> None:
        """A row is about to move to another key. One that is there, and that nothing has written since the recovery
        began, is not in the source: it would go at the end, and is in the way now. The temporary table has the old key
        and the new row."""
        from psycopg import sql

        if offset < self.since:
            return
        db.execute(
            sql.SQL(
                'DELETE FROM {} t USING {} s, {} n WHERE s."tidemill set" = 0 AND n."tidemill set" = 1'
                " AND {} AND NOT ({}) AND NOT EXISTS (SELECT FROM {} k WHERE {})"
            ).format(
                target.identifier, stage, stage, _same("t", "n", self.columns), _same("t", "s", self.columns),
                self.identifier, _same("k", "t", self.columns),
            )
        )  # fmt: skip


class Recoveries:
    """Of one connection and one transaction."""

    def __init__(self, db: Connection, state_schema: str) -> None:
        self._db, self._schema = db, state_schema
        self._there: bool | None = None
        self._known: dict[tuple[str, str], KeptKeys | None] = {}

    def of(self, target: Target) -> KeptKeys | None:
        """None: no recovery of this target is under way, or it was given up. Holds it still until the transaction ends.
        If the target's key is another one by now, what was noted says nothing any more: the recovery is given up."""
        place = target.schema, target.name
        if not self._is_there():
            return None
        if place not in self._known:
            found = self._read(place, "FOR SHARE")
            if found is not None and not found.columns:
                found = None
            elif found is not None and set(found.columns) != {target.column(n) for n in target.key}:
                emit("sink.recovery_given_up", table=target.full_name, why="its key changed")
                self._give_up(place, found)
                found = None
            elif found is not None and not self._hold_keys(place, found):
                found = None
            elif found is not None:
                others = [each for each in target_uniques(self._db, *place) if each.columns != set(found.columns)]
                found = replace(found, uniques=tuple(others))
            self._known[place] = found
        return self._known[place]

    def begin(self, place: tuple[str, str], key: Sequence[str], since: Offset) -> None:
        from psycopg import sql

        schema, name = place
        self._db.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidemill', 0))")
        self._db.execute(sql.SQL(_CREATE).format(table=self._table))
        if (older := self._read(place, "FOR UPDATE")) is not None:
            self._drop(place, older)
        there = columns(self._db, schema, name)
        if not key:
            return  # nothing that could be told apart
        if there and not set(key) <= set(there):
            key = ()  # it has the key of the time before
        digest = hashlib.sha256(f"{schema}\x00{name}".encode()).hexdigest()[:16]
        kept = KeptKeys(self._schema, f"tidemill_keys_{digest}", since, tuple(key))
        if (
            there and key
        ):  # else what was captured before the gap makes the table, which has its keys noted from then on
            self._make_keys(place, kept)
        self._db.execute(
            sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s)").format(self._table),
            [schema, name, since, kept.name, list(key)],
        )

    def end(self, place: tuple[str, str], since: Offset, *, remove: bool, where: str) -> int | None:
        """In one transaction: rows go, and with them the note of the recovery. None: the recovery was given up, so that
        none are removed."""
        from psycopg import sql

        kept = self._read(place, "FOR UPDATE") if self._is_there() else None
        if kept is None:
            return 0
        if remove and kept.since != since:
            raise Refused(
                f"{'.'.join(place)} is being recovered from offset {kept.since}, not from {since}", where=where,
                fix="Another recovery has begun since. It removes what is left over.",
            )  # fmt: skip
        removed: int | None = 0 if kept.columns or not remove else None
        if remove and kept.columns and columns(self._db, *place):
            if not self._hold_keys(place, kept):  # they are not there if nothing was written since
                self._drop(place, kept)
                return None
            self._db.execute(sql.SQL("ANALYZE {}").format(kept.identifier))
            same = sql.SQL(" AND ").join(sql.SQL("k.{0} = t.{0}").format(sql.Identifier(name)) for name in kept.columns)
            removed = self._db.execute(
                sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM {} k WHERE {})").format(
                    sql.Identifier(*place), kept.identifier, same
                )
            ).rowcount
        self._drop(place, kept)
        return removed

    def _hold_keys(self, place: tuple[str, str], kept: KeptKeys) -> bool:
        """They are there, with the types that the target has by now: a narrower type would round a key, and a row that
        the source has would be removed. False: what was noted has no meaning in the new type, and is given up."""
        import psycopg
        from psycopg import sql

        self._make_keys(place, kept)
        noted, target = columns(self._db, kept.schema, kept.name), columns(self._db, *place)
        retyped = [name for name in kept.columns if noted[name].kind != target[name].kind]
        if not retyped:
            return True
        change = sql.SQL("ALTER COLUMN {0} TYPE {1} USING {0}::{1}")
        steps = (change.format(sql.Identifier(name), sql.SQL(target[name].kind)) for name in retyped)
        try:
            with self._db.transaction():  # a savepoint
                self._db.execute(sql.SQL("ALTER TABLE {} {}").format(kept.identifier, sql.SQL(", ").join(steps)))
        except (psycopg.DataError, psycopg.ProgrammingError):
            emit("sink.recovery_given_up", table=".".join(place), why="the type of its key changed")
            self._give_up(place, kept)
            return False
        return True

    def _make_keys(self, place: tuple[str, str], kept: KeptKeys) -> None:
        """If they are not there. Of several lanes one makes them, and the others wait for it to commit. Not under the
        lock of `begin`, which waits for the note of the recovery that a lane holds."""
        import psycopg
        from psycopg import sql

        if columns(self._db, kept.schema, kept.name):
            return
        with suppress(psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation), self._db.transaction():
            self._db.execute(
                sql.SQL("CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA").format(
                    kept.identifier, _names(kept.columns), sql.Identifier(*place)
                )
            )

    @property
    def _table(self) -> sql.Identifier:
        from psycopg import sql

        return sql.Identifier(self._schema, _TABLE)

    def _is_there(self) -> bool:
        """A target that never had a recovery has no table for it."""
        if self._there is None:
            row = self._db.execute(
                "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = %s", [self._schema, _TABLE]
            ).fetchone()
            self._there = row is not None
        return self._there

    def _read(self, place: tuple[str, str], lock: str) -> KeptKeys | None:
        from psycopg import sql

        row = self._db.execute(
            sql.SQL(
                "SELECT keys_name, since, key_columns FROM {} WHERE schema_name = %s AND table_name = %s {}"
            ).format(self._table, sql.SQL(lock)),
            place,
        ).fetchone()
        return None if row is None else KeptKeys(self._schema, row[0], int(row[1]), tuple(row[2]))

    def _give_up(self, place: tuple[str, str], kept: KeptKeys) -> None:
        """The note stays, so that the recovery's end is not taken for one that found nothing to remove."""
        from psycopg import sql

        self._db.execute(
            sql.SQL("UPDATE {} SET key_columns = '{{}}' WHERE schema_name = %s AND table_name = %s").format(
                self._table
            ),
            place,
        )
        self._db.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(kept.identifier))

    def _drop(self, place: tuple[str, str], kept: KeptKeys) -> None:
        from psycopg import sql

        self._db.execute(
            sql.SQL("DELETE FROM {} WHERE schema_name = %s AND table_name = %s").format(self._table), place
        )
        self._db.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(kept.identifier))


def _names(key: Sequence[str]) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, key))


def _same(one: str, other: str, columns: Sequence[str]) -> sql.Composed:
    from psycopg import sql

    pair = sql.SQL(f"{one}.{{0}} = {other}.{{0}}")
    return sql.SQL(" AND ").join(pair.format(sql.Identifier(name)) for name in columns)
