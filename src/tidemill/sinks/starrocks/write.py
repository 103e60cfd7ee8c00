"""One delivery on its way to StarRocks: events are gathered per table, settled, and loaded.

How a delivery is cut depends on nothing but its events, so a replay has the same loads under the same labels. Once an
event is known to be poisoned nothing more is sent; the rest is still looked at, to name all of them at once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.template import Template
from tidemill.sinks._shared.history import TableBlock, VersionedResumption
from tidemill.sinks._shared.images import Verdicts, has_table
from tidemill.sinks._shared.unfollowed import refuse_older
from tidemill.sinks.starrocks.client import RowsRefused
from tidemill.sinks.starrocks.rows import VERSION, LoadPiece, settle
from tidemill.sinks.starrocks.tables import StarRocksDestination, StarRocksTableName, text_of
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from tidemill.sinks.starrocks import StarRocksConfig, StarRocksSession

_ROWS = [int(op) for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)]
_SEARCHES = 200
"""Loads that a search for refused rows may take. What it has found by then is reported, the next attempt goes on."""
_IN_JSON = re.compile(rf'"{VERSION}"\s*:\s*"?(\d+)')


@dataclass(slots=True)
class _PendingLoad:
    destination: StarRocksDestination
    table: Any
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class StarRocksWriter:
    def __init__(self, config: StarRocksConfig, session: StarRocksSession, delivery: Delivery, where: str) -> None:
        self.events = self.bytes = 0
        self._config = config
        self._session = session
        self._delivery = delivery
        self._where = where
        self._database, self._table = Template(config.database), Template(config.table)
        self._verdicts = Verdicts()
        self._resumption = VersionedResumption(session.history, delivery)
        self._pending: dict[StarRocksTableName, _PendingLoad] = {}
        self._before: dict[
            StarRocksTableName, str
        ] = {}  # of each table: the digest of what this delivery brought so far

    @property
    def reasons(self) -> dict[int, str]:
        return self._verdicts.reasons

    @property
    def lacking(self) -> set[int]:
        return self._verdicts.lacking

    def take(self, block: Block) -> None:
        self.events += block.rows
        if not has_table(block):
            return
        table, source = block.table, self._delivery.source
        refuse_older(self._delivery, table, self._where, defaults=False)
        name = StarRocksTableName(self._database.constant(table, source), self._table.constant(table, source))
        if not self._session.tables.knows(name, table):
            self._flush(name)  # rows of the structure before this one go into the table as it was
        destination = self._session.tables.destination(name, table, int(block.offsets()[0]))
        self._resumption.fresh(TableBlock(name, block))
        pending = self._pending.get(name)
        if pending is not None and pending.table.fingerprint != table.fingerprint:
            self._flush(name)
        ops = block.batch.column("op").to_numpy()
        at = 0
        for truncate in np.flatnonzero(ops == Op.TRUNCATE).tolist():
            self._gather(block, ops, at, truncate, destination)
            self._truncate(destination, int(block.offsets()[truncate]))
            at = truncate + 1
        self._gather(block, ops, at, block.rows, destination)

    def finish(self) -> None:
        for name in list(self._pending):
            self._flush(name)
        self._resumption.note()

    def _gather(self, block: Block, ops: Any, first: int, last: int, destination: StarRocksDestination) -> None:
        chosen = np.flatnonzero(np.isin(ops[first:last], _ROWS)) + first
        if not len(chosen):
            return
        batch = block.batch if len(chosen) == block.rows else block.batch.take(pa.array(chosen))
        name = destination.name
        pending = self._pending.setdefault(name, _PendingLoad(destination, block.table))
        pending.batches.append(batch.drop_columns(["position"]))  # a dictionary per append, which no load needs
        pending.rows += batch.num_rows
        pending.bytes += batch.nbytes
        config = self._config
        if pending.rows >= config.max_load_rows or pending.bytes >= config.max_load_bytes:
            self._flush(name)
        while sum(p.bytes for p in self._pending.values()) > 2 * config.max_load_bytes:
            self._flush(max(self._pending, key=lambda n: self._pending[n].bytes))

    def _flush(self, name: StarRocksTableName) -> None:
        pending = self._pending.pop(name, None)
        if pending is None:
            return
        # Blocks of one table may or may not have images of the old row, unchanged or odd values.
        whole = pa.concat_tables([pa.Table.from_batches([b]) for b in pending.batches], promote_options="default")
        (batch,) = whole.combine_chunks().to_batches() or [pending.batches[0]]
        destination, config = pending.destination, self._config
        pieces = settle(
            Block(pending.table, batch), destination.kinds, config.offset_base, extra=destination.extra,
            verdicts=self._verdicts,
        )  # fmt: skip
        for piece in list(pieces) if not self.reasons else ():
            if not self.reasons:
                self._bring(name, piece)

    def _truncate(self, destination: StarRocksDestination, offset: int) -> None:
        self._flush(destination.name)
        if not self.reasons:
            base = self._config.offset_base
            self._session.tables.truncate(destination.name, base + offset, base + self._delivery.end)

    def _bring(self, name: StarRocksTableName, piece: LoadPiece) -> None:
        try:
            self._load(name, piece)
        except RowsRefused as refusal:
            offsets = self._find_named(piece, refusal)
            if offsets:
                for offset in offsets:
                    self.reasons.setdefault(offset, "StarRocks filtered the row: a value does not fit its column")
            else:
                self._search(name, piece)

    def _load(self, name: StarRocksTableName, piece: LoadPiece) -> None:
        body = piece.body()
        label = self._label(name, piece, body)
        if piece.holes and self._session.loads.state(name.database, label) not in ("VISIBLE", "COMMITTED"):
            there = self._where_rows_are(name, piece)
            if self.reasons or not there.any():
                return
            if not there.all():
                piece = piece.take(np.flatnonzero(there))
                body = piece.body()
                label = self._label(name, piece, body)
        headers = {
            "columns": piece.columns,
            "jsonpaths": piece.paths,
            "merge_condition": VERSION,
            **({"partial_update": "true"} if piece.partial else {}),
        }
        failpoint("starrocks.loading")
        self._session.loads.load(name.database, name.table, label, headers, body)
        failpoint("starrocks.loaded")
        if piece.dead and self._config.deletes == "remove":  # also what an earlier attempt marked and did not remove
            base, delivery = self._config.offset_base, self._delivery
            self._session.tables.purge(name, piece, base + delivery.start, base + delivery.end)
        self._before[name] = label.rpartition("_")[2]
        self.bytes += len(body)

    def _where_rows_are(self, name: StarRocksTableName, piece: LoadPiece) -> Any:
        """A partial update of a row that is not there would insert it with NULLs (invariant 7): it is condemned. Unless
        events after this batch were here before: then it was deleted since, or condemned then, and is left out."""
        tables, base, wanted = self._session.tables, self._config.offset_base, piece.key_values()
        known = tables.find_keys(name, list(piece.keys), wanted)
        there = np.array([tuple(map(text_of, row)) in known for row in wanted], bool)
        if not there.all() and not tables.versions_from(name, base + self._delivery.end):
            self._verdicts.condemn(
                np.array(piece.offsets) - base, ~there,
                "the source did not send the unchanged columns, and the destination has no row that keeps them; "
                "a snapshot of the table, or REPLICA IDENTITY FULL, brings them", lacking=True,
            )  # fmt: skip
        return there

    def _label(self, name: StarRocksTableName, piece: LoadPiece, body: bytes) -> str:
        """At most 128 letters, digits, dashes and underscores. What the load brings is part of it: after a lost state
        directory the same batch numbers are other events, which must not pass as loaded. So is what the delivery
        brought before it: if that is loaded anew, under other labels, this must be too, or older rows would stay."""
        delivery = self._delivery
        batch = f"{delivery.start}_{delivery.end}_{delivery.lane}of{delivery.lanes}"
        identity = [delivery.pipeline, self._config.id, batch, name.plain, piece.columns, str(piece.partial)]
        identity.append(self._before.get(name, ""))
        digest = hashlib.sha256("\x00".join(identity).encode() + b"\x00" + body).hexdigest()[:32]
        names = [re.sub(r"[^A-Za-z0-9]+", "-", text)[:16] for text in (delivery.pipeline, self._config.id)]
        return f"tidemill_{names[0]}_{names[1]}_{batch}_{digest}"

    def _find_named(self, piece: LoadPiece, refusal: RowsRefused) -> set[int]:
        """Offsets that the report names, if it names as many as were filtered. The report itself quotes values."""
        base = self._config.offset_base
        known = set(piece.offsets)
        found = {int(v) for v in _IN_JSON.findall(refusal.report)} & known
        return {v - base for v in found} if found and len(found) == refusal.filtered else set()

    def _search(self, name: StarRocksTableName, piece: LoadPiece) -> None:
        """Halves a refused piece until the refused rows stand alone. Halves that are taken are no harm: their rows come
        again and are the same."""
        parts, loads = [piece], 0
        while parts and (loads < _SEARCHES or not self.reasons):
            part = parts.pop()
            try:
                loads += 1
                self._load(name, part)
            except RowsRefused:
                count = part.rows.num_rows
                if count == 1:
                    offset = part.offsets[0] - self._config.offset_base
                    self.reasons.setdefault(offset, "StarRocks filtered the row: a value does not fit its column")
                else:
                    parts += [part.slice(count // 2, count), part.slice(0, count // 2)]
