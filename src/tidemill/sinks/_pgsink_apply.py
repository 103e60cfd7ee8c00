"""Brings rows into a table: COPY into a temporary table, then one DELETE, one upsert, one UPDATE per set of columns.

New rows are tried as plain COPY into the table itself, which costs half; should one be there already, the attempt is
taken back and they go the long way like the others.

When PostgreSQL refuses a row (a constraint, a value its type does not take), the window is taken back to its savepoint
and halved until the rows that cannot be taken are known. Only their offsets and the kind of error leave this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.model.block import Op
from tidemill.model.position import Offset
from tidemill.sinks import _pgsink_rows as rows_
from tidemill.sinks import _pgsink_text as text
from tidemill.sinks._pgsink_connection import is_data_error, reason
from tidemill.sinks._pgsink_rows import Rows, Stretch
from tidemill.sinks._pgsink_tables import Target

if TYPE_CHECKING:
    from psycopg import sql

    from tidemill.sinks._pgsink_connection import Connection

_MOST_BAD = 1000  # rows to look for before the delivery is given back: each costs some twenty attempts
_DELETE, _WHOLE = 0, 1  # numbers of row sets; partial ones follow


class TooMany(Exception):
    """Enough rows are known to be bad; looking for more would take too long."""


class Applier:
    """One per delivery. `bad` are offsets that the target refuses, each with its reason."""

    def __init__(self, db: Connection) -> None:
        self.bad: dict[Offset, str] = {}
        self.bytes = 0
        self._db = db

    def apply(self, target: Target, stretches: Sequence[Stretch]) -> None:
        """In the order of their offsets."""
        for stretch in stretches:
            if target.key and not stretch.alone:
                self._upsert(target, stretch)
                continue
            rows = stretch.all()
            if not target.key:
                self._append(target, rows)
            elif rows.ops[0] == Op.TRUNCATE:
                self._truncate(target)
            else:
                self._stage(target)
                self._halve(target, rows, self._move)

    def _truncate(self, target: Target) -> None:
        from psycopg import sql

        self._db.execute(sql.SQL("TRUNCATE TABLE {}").format(target.identifier))

    def _append(self, target: Target, rows: Rows) -> None:
        """A table without a key only grows: what would change a row cannot be done."""
        if rows.ops[0] == Op.TRUNCATE:
            self._truncate(target)
            return
        grows = (rows.ops == Op.INSERT) | (rows.ops == Op.READ)
        for offset in rows.offsets[~grows].tolist():
            self.bad[offset] = "the table has no key, so the row to change cannot be found"
        if grows.any():
            self._halve(target, rows.take(np.flatnonzero(grows)), self._copy)

    def _upsert(self, target: Target, stretch: Stretch) -> None:
        left = stretch.rest if self._taken(target, stretch.fresh) else stretch.all()
        if left is not None:
            self._stage(target)
            self._halve(target, left, self._merge)

    def _taken(self, target: Target, fresh: Rows | None) -> bool:
        """Whether new rows are in the table now, tried as such."""
        import psycopg

        if fresh is None or not target.optimistic:
            return fresh is None
        try:
            with self._db.transaction():
                self._copy(target, fresh)
        except psycopg.Error as error:
            if not is_data_error(error):
                raise
            # Something is there already, or cannot be taken: the long way tells which.
            target.optimistic = not isinstance(error, psycopg.errors.UniqueViolation)
            return False
        return True

    def _halve(self, target: Target, rows: Rows, attempt: Any) -> None:
        """Applies the rows; if some are refused, all others. One row per key, so their order does not matter."""
        import psycopg

        pending = [rows]
        while pending:
            piece = pending.pop()
            try:
                with self._db.transaction():  # a savepoint
                    attempt(target, piece)
            except psycopg.Error as error:
                if not is_data_error(error):
                    raise
                if len(piece) == 1:
                    self._note(int(piece.offsets[0]), reason(error))
                    continue
                half = len(piece) // 2
                pending += [piece.slice(half, len(piece) - half), piece.slice(0, half)]

    def _note(self, offset: Offset, why: str) -> None:
        self.bad[offset] = why
        if len(self.bad) >= _MOST_BAD:
            raise TooMany

    def _copy(self, target: Target, rows: Rows) -> None:
        columns = [rows.columns[n] for n in target.numbers]
        self._send(target.identifier, [target.column(n) for n in target.numbers], columns)

    def _send(self, into: sql.Composable, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        from psycopg import sql

        content = text.lines(columns)
        self.bytes += content.size
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        with self._db.cursor() as cursor, cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(into, listed)) as copy:
            copy.write(memoryview(content))

    def _stage(self, target: Target) -> None:
        """The temporary table has the target's types but none of its constraints: a deleted row is only a key."""
        from psycopg import sql

        if target.stage:
            return
        target.stage = f"tidemill_stage_{self._db.execute(_NEXT_STAGE).fetchone()[0]}"  # type: ignore[index]
        columns = sql.SQL(", ").join(sql.Identifier(target.column(n)) for n in _both(target))
        self._db.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE {} ON COMMIT DELETE ROWS AS "
                'SELECT 0::integer AS "tidemill row", 0::smallint AS "tidemill set", {} FROM {} WITH NO DATA'
            ).format(sql.Identifier(target.stage), columns, target.identifier)
        )

    def _merge(self, target: Target, rows: Rows) -> None:
        """Rows of one window, one per key."""
        from psycopg import sql

        numbers = _both(target)
        deleted = rows.ops == Op.DELETE
        kinds = np.where(deleted, _DELETE, _WHOLE).astype(np.int16)
        partial = [(members, left) for members, left in rows_.sets(rows) if left]
        for number, (members, _) in enumerate(partial, start=_WHOLE + 1):
            kinds[members] = number
        columns = [_numbered(np.arange(len(rows))), _numbered(kinds), *(rows.columns[n] for n in numbers)]
        names = ["tidemill row", "tidemill set", *(target.column(n) for n in numbers)]
        stage = sql.Identifier(target.stage)
        self._send(stage, names, columns)
        if deleted.any():
            self._db.execute(
                sql.SQL('DELETE FROM {} t USING {} s WHERE s."tidemill set" = 0 AND {}').format(
                    target.identifier, stage, _same_key(target)
                )
            )
        if (kinds == _WHOLE).any():
            self._db.execute(_upsert(target, stage))
        for number, (members, left) in enumerate(partial, start=_WHOLE + 1):
            self._update(target, stage, number, left, rows.offsets[members], members)
        self._db.execute(sql.SQL("TRUNCATE TABLE {}").format(stage))

    def _update(
        self, target: Target, stage: sql.Identifier, number: int, left: Sequence[int], offsets: Any, members: Any
    ) -> None:
        """Columns that the source did not send keep the value that the target has."""
        from psycopg import sql

        changed = [n for n in target.numbers if n not in left and n not in target.key]
        touched = changed or [target.key[0]]  # only the key was sent: the row must be there all the same
        found = self._db.execute(
            sql.SQL(
                'UPDATE {} t SET {} FROM {} s WHERE s."tidemill set" = {} AND {} RETURNING s."tidemill row"'
            ).format(
                target.identifier, _assignments(target, touched, "s"), stage, sql.Literal(number), _same_key(target)
            )
        ).fetchall()
        if len(found) < len(members):
            there = {row for (row,) in found}
            for row, offset in zip(members.tolist(), offsets.tolist(), strict=True):
                if row not in there:
                    self._note(offset, rows_.INCOMPLETE)

    def _move(self, target: Target, row: Rows) -> None:
        """An UPDATE of the key whose new row lacks values: only the row at the target knows them."""
        from psycopg import sql

        assert row.old_key is not None
        left = set(np.flatnonzero(row.unchanged[:, 0]).tolist()) if row.unchanged is not None else set()
        numbers, stage = _both(target), sql.Identifier(target.stage)
        names = ["tidemill row", "tidemill set", *(target.column(n) for n in numbers)]
        pair = [(row.columns[n], row.columns[n]) for n in numbers]
        for old, n in zip(row.old_key, target.key, strict=True):
            at = numbers.index(n)
            pair[at] = (old, row.columns[n])
        # Two lines of the temporary table: the old key, and the new row.
        columns = [pa.concat_arrays(list(both)) for both in pair]
        self._send(stage, names, [_numbered(np.arange(2)), _numbered(np.array([0, 1])), *columns])
        changed = [n for n in target.numbers if n not in left]
        done = self._db.execute(
            sql.SQL(
                'UPDATE {} t SET {} FROM {} s, {} n WHERE s."tidemill set" = 0 AND n."tidemill set" = 1 AND {}'
            ).format(target.identifier, _assignments(target, changed, "n"), stage, stage, _same_key(target))
        )
        if done.rowcount == 0:
            self._note(int(row.offsets[0]), rows_.INCOMPLETE)
        self._db.execute(sql.SQL("TRUNCATE TABLE {}").format(stage))


_NEXT_STAGE = "SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r'"


def _both(target: Target) -> list[int]:
    """Columns of the temporary table: those that are written, and the key even where the target generates it."""
    return sorted({*target.numbers, *target.key})


def _numbered(values: np.ndarray[Any, Any]) -> pa.Array:
    return text.column(pa.array(values))


def _same_key(target: Target) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(target.column(n))) for n in target.key)


def _assignments(target: Target, numbers: Sequence[int], source: str) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(
        sql.SQL("{0} = {1}.{0}").format(sql.Identifier(target.column(n)), sql.Identifier(source)) for n in numbers
    )


def _upsert(target: Target, stage: sql.Identifier) -> sql.Composed:
    from psycopg import sql

    listed = sql.SQL(", ").join(sql.Identifier(target.column(n)) for n in target.numbers)
    key = sql.SQL(", ").join(sql.Identifier(target.column(n)) for n in target.key)
    others = [n for n in target.numbers if n not in target.key]
    action = (
        sql.SQL("DO UPDATE SET {}").format(_assignments(target, others, "excluded"))
        if others
        else sql.SQL("DO NOTHING")
    )
    return sql.SQL(
        'INSERT INTO {} ({}) SELECT {} FROM {} WHERE "tidemill set" = 1 ORDER BY "tidemill row" ON CONFLICT ({}) {}'
    ).format(target.identifier, listed, listed, stage, key, action)
