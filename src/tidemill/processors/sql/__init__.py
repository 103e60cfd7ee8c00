"""Runs a SELECT over events in DuckDB: expressions, filters, and joins with small lookups. docs/processors/sql.md.

The query sees a row's newest image as `events`. Only what it computes goes through DuckDB; columns that pass keep their
Arrow values, exact texts and `unchanged` marks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, model_validator

from tidemill.contracts import BaseProcessor, Check, Outcome, ProcessorConfig
from tidemill.errors import ConfigError, EnvironmentProblem, ProcessingError, TidemillError
from tidemill.model.block import Block, Op
from tidemill.model.derived import derived_table, reshape
from tidemill.model.table import Column, Table
from tidemill.processors._shared.types import data_type
from tidemill.processors.sql.lookups import Lookup, LookupConfig
from tidemill.processors.sql.query import EVENTS, META, ROW, Compiled, QueryRefused, SelectQuery
from tidemill.processors.sql.watchdog import QueryTimeout, Watchdog

_OPS = pa.array([None, *(op.label for op in Op)], pa.string())
_COMPUTED_OF = 'column "{}" was not sent by the source or is beyond its type, and the query computes with it'


class SqlConfig(ProcessorConfig):
    query: str = Field(description="One SELECT over `events`; docs/processors/sql.md says what it may do.")
    lookups: dict[str, LookupConfig] = Field(default_factory=dict, description="Small tables to join, by their name.")
    timeout_ms: int = Field(
        default=30_000, ge=1, description="How long the query may run over one block; longer is an error of its events."
    )

    @model_validator(mode="after")
    def _check_allowed(self) -> SqlConfig:
        SelectQuery(self.query, self.lookups)
        return self


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    compiled: Compiled
    table: Table


class SqlProcessor(BaseProcessor[SqlConfig]):
    Config = SqlConfig

    def __init__(self, config: SqlConfig) -> None:
        super().__init__(config)
        self._longest_ms = 0.0  # that the query ran over one block
        self._query = SelectQuery(config.query, config.lookups)
        self._lookups = {name.casefold(): Lookup(name, each) for name, each in config.lookups.items()}
        self._tables: dict[object, PreparedQuery] = {}
        self._connection: Any = None

    def derive(self, table: Table) -> Table | None:
        return self._prepare(table).table

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            yield self._process(block)

    def limit_usage(self) -> Mapping[str, tuple[float, float]]:
        return {"timeout_ms": (self._longest_ms, self.config.timeout_ms)} if self._longest_ms else {}

    def doctor(self) -> Iterable[Check]:
        try:
            self._open()
            yield Check("query", Outcome.PASS, "DuckDB is here, and lookups can be read")
        except TidemillError as error:
            yield Check("query", Outcome.FAIL, error.what, error.fix)
        finally:
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _process(self, block: Block) -> Block:
        prepared = self._prepare(block.table)
        self._refuse_partial(block, prepared.compiled)
        after, before = _there(block, "after"), _there(block, "before")
        newest = np.where(after, 2, np.where(before, 1, 0))
        seen = np.flatnonzero(newest > 0)  # a delete with nothing but its key has nothing to ask about, and passes
        rows, new = self._ask(block, _newest(block, newest), seen, prepared)
        both = np.flatnonzero(after & before)
        old_rows, old = self._ask(block, block.column("before"), both, prepared) if len(both) else (both, None)
        kept, place = np.concatenate([np.flatnonzero(newest == 0), rows]), len(block.offsets()) - len(seen)
        order = np.argsort(kept, kind="stable")
        kept, computed = kept[order], order - place  # negative: a key alone
        return self._make(block, prepared, kept, computed, new, (old_rows, old), newest)

    def _make(
        self, block: Block, prepared: PreparedQuery, kept: npt.NDArray[np.int64], computed: npt.NDArray[np.int64],
        new: pa.Table, old: tuple[npt.NDArray[np.int64], pa.Table | None], newest: npt.NDArray[np.int64],
    ) -> Block:  # fmt: skip
        taken, outputs = block.take(kept), prepared.compiled.outputs
        old_place = np.full(block.rows, -1)
        old_place[old[0][::-1]] = np.arange(len(old[0]))[::-1]  # the first where a lookup gives several
        by_name = {c.name: c for c in prepared.table.columns}
        images: dict[str, pa.StructArray | None] = {}
        for side, code in (("after", 2), ("before", 1), ("key", 0)):
            struct = taken.column(side)
            if struct is None:
                continue
            there = struct.is_valid().to_numpy(zero_copy_only=False)
            is_newest = there & (newest[kept] == code) & (computed >= 0)
            if side == "before":
                there = is_newest | (there & (old_place[kept] >= 0))
            passing = {f.name: struct.field(n) for n, f in enumerate(struct.type)}
            columns, fields = [], []
            for output in outputs:
                kind = by_name[output.name].type.arrow
                if output.source is not None and (side != "key" or output.source in passing):
                    values = passing.get(output.source, pa.nulls(len(kept), kind))
                elif side == "key":
                    continue
                else:
                    places = np.where(is_newest, computed, -1)
                    values = _pick(new.column(output.name), places, kind)
                    if side == "before" and old[1] is not None:
                        earlier = np.where(is_newest, -1, old_place[kept])
                        values = pa.compute.coalesce(values, _pick(old[1].column(output.name), earlier, kind))
                columns.append(values)
                fields.append(pa.field(output.name, kind))
            mask = pa.array(~there) if not there.all() else None
            images[side] = pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
        return reshape(taken, prepared.table, images, [output.source for output in outputs])

    def _ask(
        self, block: Block, image: pa.StructArray | None, rows: npt.NDArray[np.int64], prepared: PreparedQuery
    ) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Numbers of the rows that come out, and what was computed for each."""
        assert image is not None or not len(rows)
        struct = image if image is not None else pa.nulls(block.rows, block.table.arrow_struct())
        view = _view(block, struct, rows)
        try:
            found = self._run(view, prepared.compiled)
        except QueryTimeout as error:
            raise self._too_slow(block) from error
        except _duckdb().Error as error:
            raise ProcessingError(self._culprits(block, view, rows, prepared.compiled, error)) from error
        numbers = found.column(0).to_numpy()
        order = np.argsort(numbers, kind="stable")
        if len(order) > 1 and (np.diff(order) != 1).any():
            found, numbers = found.take(pa.array(order)), numbers[order]
        return numbers, found

    def _culprits(
        self, block: Block, view: pa.Table, rows: npt.NDArray[np.int64], compiled: Compiled, error: Exception
    ) -> dict[int, str]:
        """The events that the query fails on, by halves. DuckDB's message may quote values; its kind does not."""
        if len(rows) == 1:
            return {int(block.offsets()[rows[0]]): f"DuckDB: {type(error).__name__} in the query"}
        found: dict[int, str] = {}
        for part in (slice(0, len(rows) // 2), slice(len(rows) // 2, len(rows))):
            try:
                self._run(view.slice(part.start, part.stop - part.start), compiled)
            except QueryTimeout as slow:
                raise self._too_slow(block) from slow
            except _duckdb().Error as again:
                piece = view.slice(part.start, part.stop - part.start)
                found |= self._culprits(block, piece, rows[part], compiled, again)
        return found or {int(block.offsets()[row]): f"DuckDB: {type(error).__name__} in the query" for row in rows}

    def _run(self, view: pa.Table, compiled: Compiled) -> pa.Table:
        connection = self._open()
        connection.register(EVENTS, view)
        began = time.monotonic()
        try:
            with Watchdog(connection, self.config.timeout_ms):
                return connection.sql(compiled.sql).to_arrow_table()
        finally:
            spent = (time.monotonic() - began) * 1000
            self._longest_ms = max(self._longest_ms, spent)
            connection.unregister(EVENTS)

    def _too_slow(self, block: Block) -> ProcessingError:
        reason = f"the query ran longer than timeout_ms, {self.config.timeout_ms} ms, over its block"
        return ProcessingError(
            dict.fromkeys(block.offsets().tolist(), reason),
            fix="Make the query cheaper: a join whose condition finds many rows multiplies them. Or raise timeout_ms.",
        )

    def _prepare(self, table: Table) -> PreparedQuery:
        if table.lineage not in self._tables:
            connection = self._open()
            lookups = {name: each.table()[0].column_names for name, each in self._lookups.items()}
            try:
                compiled = self._query.compiled([c.name for c in table.columns], lookups)
                empty = pa.StructArray.from_arrays(
                    [pa.nulls(0, c.type.arrow) for c in table.columns], fields=list(table.arrow_struct())
                )
                self._check_functions(connection)
                result = self._run(_view(None, empty, np.empty(0, np.int64)), compiled).schema
            except (QueryRefused, QueryTimeout, _duckdb().Error) as error:
                raise ConfigError(
                    f"the query does not fit {table.full_name}: {str(error).splitlines()[0]}",
                    where=f'processor "{self.config.id}"',
                    fix="Name its tables under `tables` if the query is not for this one.",
                ) from error
            own = {c.name: c for c in table.columns}
            columns = [
                Column(each.name, data_type(result.field(each.name).type)) if each.source is None
                else own[each.source] if each.name == each.source
                else Column(each.name, own[each.source].type, nullable=own[each.source].nullable)
                for each in compiled.outputs
            ]  # fmt: skip
            renames = {each.source: each.name for each in compiled.outputs if each.source is not None}
            same = columns == list(table.columns)
            derived = table if same else derived_table(table, columns, {o: n for o, n in renames.items() if o != n})
            self._tables[table.lineage] = PreparedQuery(compiled, derived)
        return self._tables[table.lineage]

    def _check_functions(self, connection: Any) -> None:
        """What sqlglot takes for an ordinary function may be none of DuckDB's."""
        names = sorted(self._query.functions())
        kinds = "SELECT DISTINCT function_name, function_type, stability FROM duckdb_functions() WHERE function_name IN"
        marks = ", ".join("?" for _ in names)
        for name, kind, stability in connection.execute(f"{kinds} ({marks})", names).fetchall() if names else ():
            if kind in ("aggregate", "window") or stability not in ("CONSISTENT", None):
                raise QueryRefused(f"{name} combines rows or would differ in a replay")

    def _refuse_partial(self, block: Block, compiled: Compiled) -> None:
        names = [c.name for c in block.table.columns]
        wanted = {names.index(name): name for name in compiled.used}
        for side in ("unchanged", "odd") if wanted else ():
            lists = block.column(side)
            if lists is None:
                continue
            entries, parents = lists.flatten(), pa.compute.list_parent_indices(lists).to_numpy()
            numbers = (entries.field("column") if side == "odd" else entries).to_numpy(zero_copy_only=False)
            hit = np.isin(numbers, list(wanted))
            if hit.any():
                offsets = block.offsets()
                raise ProcessingError(
                    {
                        int(offsets[row]): _COMPUTED_OF.format(wanted[int(n)])
                        for row, n in zip(parents[hit], numbers[hit], strict=True)
                    }
                )

    def _open(self) -> Any:
        """A database of its own in memory, which can reach no file, no network and no setting."""
        if self._connection is None:
            settings = {
                "threads": 1, "enable_external_access": "false", "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false", "memory_limit": "512MB",
            }  # fmt: skip
            self._connection = _duckdb().connect(":memory:", config=settings)
            self._connection.execute("SET TimeZone = 'UTC'")
            self._connection.execute("SET lock_configuration = true")
            for name, lookup in self._lookups.items():
                self._connection.register(name, lookup.table()[0])
        for name, lookup in self._lookups.items():
            table, new = lookup.table()
            if new:
                self._connection.register(name, table)
        return self._connection


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise EnvironmentProblem(
            "duckdb is not installed", where="processor of type sql", fix="pip install 'tidemill[sql]'"
        ) from error
    return duckdb


def _there(block: Block, side: str) -> npt.NDArray[np.bool_]:
    struct = block.column(side)
    return np.zeros(block.rows, bool) if struct is None else struct.is_valid().to_numpy(zero_copy_only=False)


def _newest(block: Block, newest: npt.NDArray[np.int64]) -> pa.StructArray | None:
    after, before = block.column("after"), block.column("before")
    if after is None or before is None or not (newest == 1).any():
        return after if after is not None else before
    index = np.where(newest == 2, np.arange(block.rows), block.rows + np.arange(block.rows))
    return pa.concat_arrays([after, before.cast(after.type)]).take(pa.array(index))


def _view(block: Block | None, image: pa.StructArray, rows: npt.NDArray[np.int64]) -> pa.Table:
    """`events`: the image's columns, what is known of the event, and the row's number."""
    columns: dict[str, pa.Array] = {ROW: pa.array(rows)}
    whole = block is not None and len(rows) == block.rows
    for name, array in zip((f.name for f in image.type), image.flatten(), strict=True):
        columns[name] = array if whole or block is None else array.take(pa.array(rows))
    if block is None:
        kinds = (pa.string(), pa.timestamp("us", "UTC"), pa.uint64(), pa.string(), pa.uint32())
        meta = [pa.nulls(0, kind) for kind in kinds]
    else:
        batch = block.batch
        meta = [
            _OPS.take(batch.column("op")), batch.column("commit_time"), batch.column("tx_id"),
            batch.column("position").cast(pa.string()), batch.column("ordinal"),
        ]  # fmt: skip
        meta = meta if whole else [array.take(pa.array(rows)) for array in meta]
    for name, array in zip(META, meta, strict=True):
        columns.setdefault(name, array)
    return pa.table(columns)


def _pick(column: pa.ChunkedArray, places: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Values at these places, null where negative."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    array = array.cast(kind) if array.type != kind else array
    absent = places < 0
    if not absent.any() and len(places) == len(array) and (places == np.arange(len(array))).all():
        return array
    return array.take(pa.array(np.where(absent, 0, places), mask=absent))


component = SqlProcessor
