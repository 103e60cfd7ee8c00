"""One delivery on its way to ClickHouse: windows are gathered per table, and inserted in pieces.

How a delivery is cut depends on nothing but its rows, so a replay has the same pieces under the same tokens.
Once an event is known to be poisoned nothing more is sent; the rest is still looked at, to name all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import Refused
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.template import Template
from tidemill.net.clickhouse import explain_errors
from tidemill.sinks._shared.history import TableBlock, VersionedResumption
from tidemill.sinks._shared.images import Verdicts, has_table
from tidemill.sinks._shared.unfollowed import refuse_older
from tidemill.sinks._shared.upserts import Upsert
from tidemill.sinks.clickhouse.fill import fetch, fill, unwritten
from tidemill.sinks.clickhouse.rows import changelog_rows, insertable, upsert_rows
from tidemill.sinks.clickhouse.send import Sender
from tidemill.sinks.clickhouse.server_table import SUB, VERSION, ClickHouseTableName
from tidemill.sinks.clickhouse.tables import ClickHouseDestination

if TYPE_CHECKING:
    from tidemill.sinks.clickhouse import ClickHouseConfig, ClickHouseSession

_PLACE = ("_offset", "_position", "_ordinal")
_ROWS = np.isin(np.arange(256), [int(op) for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)])  # by op


@dataclass(slots=True)
class _PendingInsert:
    """Rows of one table that wait for their piece to fill."""

    destination: ClickHouseDestination
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class ClickHouseWriter:
    def __init__(self, config: ClickHouseConfig, session: ClickHouseSession, delivery: Delivery, where: str) -> None:
        self.events = self.skipped = 0
        self._asked = 0.0
        self._config = config
        self._session = session
        self._delivery = delivery
        self._where = where
        self._database, self._table = Template(config.database), Template(config.table)
        self._verdicts = Verdicts()
        self._resumption = VersionedResumption(session.history, delivery)
        self._pending: dict[ClickHouseTableName, _PendingInsert] = {}
        version = VERSION if config.mode == "upsert" else "_offset"
        self._sender = Sender(config, session.client, delivery, version, self._verdicts, where)

    @property
    def reasons(self) -> dict[int, str]:
        return self._verdicts.reasons

    @property
    def lacking(self) -> set[int]:
        return self._verdicts.lacking

    @property
    def bytes(self) -> int:
        return self._sender.bytes

    @property
    def waited(self) -> float:
        """Seconds for the server, while there was nothing else to do."""
        return self._asked + self._sender.waited

    def take(self, block: Block) -> None:
        self.events += block.rows
        if not has_table(block, keyless=self._config.mode == "changelog"):
            return
        table, source = block.table, self._delivery.source
        if self._config.mode == "upsert":
            refuse_older(self._delivery, table, self._where, defaults=True)
        name = ClickHouseTableName(self._database.constant(table, source), self._table.constant(table, source))
        destination = self._destination(name, block)
        if self._config.mode == "changelog":
            self._append(block, destination)
            return
        ops = block.batch.column("op").to_numpy()
        at = 0
        for truncate in np.flatnonzero(ops == Op.TRUNCATE).tolist():
            self._upsert(_some(block, ops, at, truncate), destination)
            self._truncate(destination, int(block.offsets()[truncate]))
            at = truncate + 1
        self._upsert(_some(block, ops, at, block.rows), destination)

    def finish(self) -> None:
        for name in list(self._pending):
            self._flush(name)
        self._sender.settle()
        self._resumption.note()

    def close(self) -> None:
        self._sender.close()

    def _destination(self, name: ClickHouseTableName, block: Block) -> ClickHouseDestination:
        tables = self._session.tables
        destination, since = tables.destination(name, block.table), int(block.offsets()[0])
        pending = self._pending.get(name)
        if pending is not None and pending.destination is not destination:
            self._flush(name)  # rows of the structure before this one go into the table as it was
        if destination is None:
            self._sender.settle()
        began = time.perf_counter()
        if destination is None:
            tables.make(name, block.table, since)
        self._resumption.fresh(TableBlock(name, block))
        if destination is None:
            destination = tables.follow(name, block.table, since)
        self._asked += time.perf_counter() - began
        return destination

    def _upsert(self, block: Block | None, destination: ClickHouseDestination) -> None:
        if block is None:
            return
        rows = upsert_rows(block, destination, self._verdicts)
        if self.reasons:
            return
        keep = None
        base = self._config.offset_base
        if rows.holes:
            self._flush(destination.name)  # so that the query finds what came before
            wanted = np.logical_or.reduce(list(rows.holes.values()))
            keep = fill(rows, self._read_stored(rows, destination, wanted, list(rows.holes)), base, self._verdicts)
        if destination.older:
            keep = self._not_there(rows, destination, keep)
        if not self.reasons:
            ready = insertable(rows, base, keep)
            if keep is not None:
                self.skipped += int(len(keep) - keep.sum())
            self._gather(destination, ready)

    def _not_there(self, rows: Upsert, destination: ClickHouseDestination, keep: Any) -> Any:
        """Of events with an older structure than the table's, only those that were never written."""
        everything = np.ones(len(rows.offsets), bool)
        fresh = unwritten(rows, self._read_stored(rows, destination, everything, []), self._config.offset_base)
        fresh = fresh if keep is None else fresh & keep
        if destination.missing and fresh.any():
            raise Refused(
                f"{destination.name.plain} no longer has columns that older events bring: "
                f"{', '.join(destination.missing)}", where=self._where,
                fix="They are gone, or others have their names. Of a dead letter, `tidemill verify FILE` says whether "
                "the row is as the source has it, and with --repair sends it again if not; then purge the dead letter. "
                'After a rewind, fill a new table (another "table").',
            )  # fmt: skip
        return fresh

    def _read_stored(self, rows: Upsert, destination: ClickHouseDestination, wanted: Any, columns: list[str]) -> Any:
        at = pa.array(np.flatnonzero(wanted))
        moved = pa.array(rows.moved)
        keys = {name: pc.if_else(moved, rows.old_keys[name], own).take(at) for name, own in rows.keys.items()}
        self._sender.settle()
        began = time.perf_counter()
        stored = fetch(self._session.client, destination, keys, columns, self._where)
        self._asked += time.perf_counter() - began
        return stored

    def _append(self, block: Block, destination: ClickHouseDestination) -> None:
        ops = block.batch.column("op").to_numpy()
        part = _pick(block, _ROWS[ops] | (ops == Op.TRUNCATE))
        if part is None:
            return
        rows = changelog_rows(part, destination, self._config.offset_base, self._verdicts)
        if self.reasons:
            return
        known = self._known_events(destination)
        if known is not None:
            fresh = pc.invert(pc.is_in(self._identity(rows), value_set=self._identity(known)))
            self.skipped += len(fresh) - (pc.sum(fresh).as_py() or 0)
            rows = rows.filter(fresh)
        self._gather(destination, rows)

    def _identity(self, rows: pa.Table) -> pa.Array:
        """What tells events of a changelog apart: the offset; where several logs share a table, their place too."""
        place = [name for name in self._place(rows.column_names) if name in rows.column_names]
        if place == ["_offset"]:
            return rows.column("_offset").combine_chunks()
        parts = [rows.column(name).combine_chunks().cast(pa.string()) for name in place]
        return pc.binary_join_element_wise(*parts, " ", null_handling="replace")

    def _place(self, columns: Collection[str]) -> list[str]:
        """Columns that tell events apart, of those that the table has."""
        place = _PLACE if self._config.shared_tables else _PLACE[:1]
        return [*place, *([SUB] if SUB in columns else [])]

    def _known_events(self, destination: ClickHouseDestination) -> pa.Table | None:
        """Events of this batch that an earlier attempt, perhaps with another plan, has brought. Later attempts of the
        same plan are the tokens' business, if the table heeds them."""
        name = destination.name
        base, delivery = self._config.offset_base, self._delivery
        client, high_water_marks = self._session.client, self._session.high_water_marks
        with explain_errors(self._where):
            if name.plain not in high_water_marks:
                self._sender.settle()
                greatest, count = client.query(f"SELECT max(_offset), count() FROM {name}").result_rows[0]
                high_water_marks[name.plain] = int(greatest) + 1 if count else 0
            if destination.deduplicates and base + delivery.start >= high_water_marks[name.plain]:
                return None
            self._sender.settle()
            found = client.query_arrow(
                f"SELECT {', '.join(self._place(destination.kinds))} FROM {name} "
                f"WHERE _offset >= {base + delivery.start} AND _offset < {base + delivery.end}"
            )
        return found if found.num_rows else None

    def _truncate(self, destination: ClickHouseDestination, offset: int) -> None:
        """Removes what is older than the event. Rows of later events stay: a replay, or a worker that woke up late, may
        find them there."""
        if self._config.shared_tables:
            self.reasons.setdefault(offset, "a TRUNCATE of one source would empty a table that others share")
        self._flush(destination.name)
        self._sender.settle()
        if self.reasons:
            return
        began = time.perf_counter()
        version, client = self._config.offset_base + offset, self._session.client
        with explain_errors(self._where):  # TRUNCATE TABLE would take all, also what came while nobody looked
            statement = f"ALTER TABLE {destination.name} DELETE WHERE {VERSION} < {version}"
            client.command(statement, settings={"mutations_sync": 2})
        self._asked += time.perf_counter() - began

    def _gather(self, destination: ClickHouseDestination, rows: pa.Table) -> None:
        at = 0
        while at < rows.num_rows:
            pending = self._pending.setdefault(destination.name, _PendingInsert(destination))
            piece = rows.slice(at, self._config.max_insert_rows - pending.rows)
            pending.tables.append(piece)
            pending.rows += piece.num_rows
            pending.bytes += piece.nbytes
            at += piece.num_rows
            if pending.rows >= self._config.max_insert_rows or pending.bytes >= self._config.max_insert_bytes:
                self._flush(destination.name)
        while sum(p.bytes for p in self._pending.values()) > 2 * self._config.max_insert_bytes:
            self._flush(max(self._pending, key=lambda name: self._pending[name].bytes))

    def _flush(self, name: ClickHouseTableName) -> None:
        pending = self._pending.pop(name, None)
        if pending is None or self.reasons:
            return
        self._sender.send(name, pa.concat_tables(pending.tables))


def _some(block: Block, ops: Any, first: int, last: int) -> Block | None:
    """The rows from `first` to before `last` that are inserts, updates, deletes or snapshot rows."""
    chosen = np.zeros(block.rows, bool)
    chosen[first:last] = _ROWS[ops[first:last]]
    return _pick(block, chosen)


def _pick(block: Block, chosen: Any) -> Block | None:
    if chosen.all():
        return block if block.rows else None
    return block.take(np.flatnonzero(chosen)) if chosen.any() else None
