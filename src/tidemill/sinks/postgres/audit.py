"""Compares rows of the source with those of a table, for `tidemill verify`.

The rows are copied into a temporary table that has the target's own types, by the texts with which the sink would write
them, and PostgreSQL compares. So what a type rounds, pads or prints in another way is no difference, whatever the type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.contracts import RowDifference, RowFault
from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.columns import Ints
from tidemill.model.snapshot import Bound
from tidemill.model.table import Table
from tidemill.sinks._shared.pg_client import explain_errors, is_data_error
from tidemill.sinks.postgres import copy_text as text
from tidemill.sinks.postgres.rows import RowStrings
from tidemill.sinks.postgres.target import TargetColumn

if TYPE_CHECKING:
    from psycopg import sql

    from tidemill.sinks._shared.pg_client import Connection

_STAGE, _SEEN, _ROW = "tidemill_audited", "tidemill_seen", "tidemill_row"


class PostgresAudit:
    """`there` are the target's columns. The connection is its own."""

    def __init__(
        self, db: Connection, schema: str, name: str, table: Table, there: dict[str, TargetColumn], where: str, *,
        values: bool = False,
    ) -> None:  # fmt: skip
        from psycopg import sql

        self._db, self._where, self._there, self._values = db, where, there, values
        self._target = sql.Identifier(schema, name)
        if not there:
            raise Refused(
                f"the sink has no table {schema}.{name} yet",
                where=where,
                fix="Nothing of it was delivered. Rows from before come by a snapshot.",
            )
        if not table.key or any(key not in there for key in table.key):
            raise Refused(
                f"rows of {table.full_name} cannot be found: it has no key, or the target has other columns",
                where=where, fix="Only tables with a primary key are compared.",
            )  # fmt: skip
        self._numbers = [
            n for n, c in enumerate(table.columns) if c.name in there and not there[c.name].generated
        ]  # fmt: skip
        self._names = [table.columns[n].name for n in self._numbers]
        self._key = table.key
        self.left_out = tuple(c.name for c in table.columns if c.name not in self._names)
        with explain_errors(where):
            self._make(_STAGE, self._names, f', 0 AS "{_ROW}"')
            self._make(_SEEN, self._key)

    def _make(self, name: str, columns: list[str] | tuple[str, ...], more: str = "") -> None:
        from psycopg import sql

        self._db.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} AS SELECT {}{} FROM {} WITH NO DATA").format(
                sql.Identifier(name), _list(columns), sql.SQL(more), self._target
            )
        )

    def compare(self, block: Block, *, note: bool) -> list[RowDifference]:
        with explain_errors(self._where):
            return self._compare(RowStrings.of(block), np.arange(block.rows), note)

    def _compare(
        self, rows: RowStrings, numbers: np.ndarray[tuple[int], np.dtype[np.int64]], note: bool
    ) -> list[RowDifference]:
        """Halves what the types refuse until the row is known: it cannot be at the target as it is at the source."""
        import psycopg

        if not len(rows):
            return []
        try:
            with self._db.transaction():
                self._stage(rows, numbers)
                return self._differences(note)
        except psycopg.Error as error:
            if not is_data_error(error):
                raise
        if len(rows) == 1:
            return [RowDifference(int(numbers[0]), RowFault.DIFFERENT)]
        half = len(rows) // 2
        return self._compare(rows.slice(0, half), numbers[:half], note) + self._compare(
            rows.slice(half, len(rows) - half), numbers[half:], note
        )

    def _stage(self, rows: RowStrings, numbers: Ints) -> None:
        from psycopg import sql

        content = text.lines([*(rows.columns[n] for n in self._numbers), text.column(pa.array(numbers))])
        into = sql.Identifier(_STAGE)
        self._db.execute(sql.SQL("TRUNCATE {}").format(into))
        copied = sql.SQL("COPY {} ({}) FROM STDIN").format(into, _list([*self._names, _ROW]))
        with self._db.cursor() as cursor, cursor.copy(copied) as copy:
            copy.write(memoryview(content))

    def _differences(self, note: bool) -> list[RowDifference]:
        from psycopg import sql

        # By the key's index, which the sink itself needs: otherwise each chunk reads the whole target.
        for join in ("hashjoin", "mergejoin"):
            self._db.execute(sql.SQL("SET LOCAL {} = off").format(sql.Identifier(f"enable_{join}")))
        same = sql.SQL(" AND ").join(
            sql.SQL("s.{0} = t.{0}").format(sql.Identifier(name)) for name in self._key
        )  # fmt: skip
        unlike = sql.SQL(", ").join(
            sql.SQL("s.{0}::text IS DISTINCT FROM t.{0}::text").format(sql.Identifier(name)) for name in self._names
        )
        found = self._db.execute(
            sql.SQL(
                "SELECT * FROM (SELECT s.{row} AS row, t.tableoid IS NULL AS missing, ARRAY[{unlike}] AS unlike,"
                " {ours} AS ours, {theirs} AS theirs FROM {stage} s LEFT JOIN {target} t ON {same}) found"
                " WHERE missing OR true = ANY (unlike) ORDER BY row"
            ).format(
                row=sql.Identifier(_ROW), unlike=unlike, stage=sql.Identifier(_STAGE), target=self._target, same=same,
                ours=self._strings("s"), theirs=self._strings("t"),
            )
        ).fetchall()  # fmt: skip
        if note:
            self._db.execute(
                sql.SQL("INSERT INTO {} SELECT {} FROM {}").format(
                    sql.Identifier(_SEEN), _list(self._key), sql.Identifier(_STAGE)
                )
            )
        return [
            RowDifference(row, RowFault.MISSING) if missing else self._difference(row, unlike, ours, theirs)
            for row, missing, unlike, ours, theirs in found
        ]

    def _strings(self, alias: str) -> sql.Composable:
        """All values as text, if they are asked for."""
        from psycopg import sql

        if not self._values:
            return sql.SQL("NULL::text[]")
        cells = (sql.SQL("{}.{}::text").format(sql.Identifier(alias), sql.Identifier(name)) for name in self._names)
        return sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(cells))

    def _difference(self, row: int, unlike: list[bool], ours: Any, theirs: Any) -> RowDifference:
        places = [place for place, differs in enumerate(unlike) if differs]
        values = tuple((ours[place], theirs[place]) for place in places) if self._values else ()
        return RowDifference(row, RowFault.DIFFERENT, tuple(self._names[place] for place in places), values)

    def extra(self, most: int) -> list[Bound]:
        from psycopg import sql

        shown = sql.SQL(", ").join(
            sql.SQL("encode(t.{}, 'hex')" if self._there[name].base == "bytea" else "t.{}::text").format(
                sql.Identifier(name)
            )
            for name in self._key
        )
        same = sql.SQL(" AND ").join(sql.SQL("s.{0} = t.{0}").format(sql.Identifier(name)) for name in self._key)
        with explain_errors(self._where):
            self._db.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(_SEEN)))
            rows = self._db.execute(
                sql.SQL("SELECT {} FROM {} t WHERE NOT EXISTS (SELECT FROM {} s WHERE {}) LIMIT {}").format(
                    shown, self._target, sql.Identifier(_SEEN), same, sql.Literal(most)
                )
            ).fetchall()
        return [tuple(row) for row in rows]

    def has(self, key: Bound) -> bool:
        from psycopg import sql

        chosen, values = self._key_condition(key)
        with explain_errors(self._where):
            asked = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(self._target, chosen)
            row = self._db.execute(asked, values).fetchone()
        return bool(row and row[0])

    def remove(self, keys: Sequence[Bound], is_gone: Callable[[Bound], bool]) -> int:
        """The row stays locked while the source is looked at. What the source inserted before that look is seen by it;
        what it inserts afterwards is delivered afterwards, and waits for the lock."""
        from psycopg import sql

        removed = 0
        for key in keys:
            chosen, values = self._key_condition(key)
            with explain_errors(self._where), self._db.transaction():
                lock = sql.SQL("SELECT 1 FROM {} WHERE {} FOR UPDATE").format(self._target, chosen)
                if self._db.execute(lock, values).fetchone() and is_gone(key):
                    delete = sql.SQL("DELETE FROM {} WHERE {}").format(self._target, chosen)
                    removed += self._db.execute(delete, values).rowcount
        return removed

    def _key_condition(self, key: Bound) -> tuple[sql.Composed, list[str]]:
        """The condition that chooses the row of a key."""
        from psycopg import sql

        kinds = {name: self._there[name] for name in self._key}
        same = sql.SQL(" AND ").join(
            sql.SQL("{} = %s::text::{}").format(sql.Identifier(name), sql.SQL(kind.kind))
            for name, kind in kinds.items()
        )
        values = [
            f"\\x{part}" if kind.base == "bytea" else part for kind, part in zip(kinds.values(), key, strict=True)
        ]
        return same, values

    def close(self) -> None:
        self._db.close()


def _list(names: list[str] | tuple[str, ...]) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, names))
