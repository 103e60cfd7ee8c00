"""A prepared stretch of changes: the same eight columns that the database benches drain, made without a database."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.block import COMMIT_TIME, META, POSITION, Block, Op
from tidemill.model.change import Committed
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset, Position
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

_APPEND = 20_000
_START_US = 1_767_225_600_000_000  # 2026-01-01

TABLE = Table(
    "bench", "public", "bench",
    (
        Column("id", DataType("bigint", pa.int64(), JsonForm.NUMBER), nullable=False),
        Column("customer_id", DataType("integer", pa.int32(), JsonForm.NUMBER)),
        Column("amount", DataType("numeric(12,2)", pa.decimal128(12, 2), JsonForm.STRING)),
        Column("status", DataType("character varying(20)", pa.string(), JsonForm.STRING)),
        Column("note", DataType("text", pa.string(), JsonForm.STRING)),
        Column("created_at", DataType("timestamp with time zone", pa.timestamp("us", tz="UTC"), JsonForm.STRING)),
        Column("flag", DataType("boolean", pa.bool_(), JsonForm.BOOL)),
        Column("score", DataType("double precision", pa.float64(), JsonForm.NUMBER)),
    ),
    ("id",), version=1, sequence=1,
).with_fingerprint()  # fmt: skip


@dataclass(frozen=True, slots=True)
class Material:
    """A log on disk that deliveries are cut from, as the stream would."""

    log: str
    rows: int

    @classmethod
    def make(cls, directory: Path, rows: int) -> Material:
        log = LogWriter.open(str(directory), LogConfig.model_validate({"fsync": False}))
        for first in range(0, rows, _APPEND):
            log.append(_append(first, min(_APPEND, rows - first)))
        log.close()
        return cls(str(directory), rows)

    def deliveries(self, events: int, *, pipeline: str) -> list[Delivery]:
        """A small first batch, then batches of about `events`; one lane."""
        reader, found, start = LogReader(self.log), [], 0
        while start < self.rows:
            end = reader.plan(start, max_events=events if start else 1, max_bytes=1 << 40)
            found.append(self._delivery(reader, start, end, pipeline))
            start = end
        return found

    def blocks(self) -> list[Block]:
        reader = LogReader(self.log)
        return [reader.read(ref) for ref in reader.refs(0, self.rows)]

    @staticmethod
    def _delivery(reader: LogReader, start: Offset, end: Offset, pipeline: str) -> Delivery:
        return Delivery(
            pipeline, "bench", start, end, 0, 1, lambda: (reader.read(ref) for ref in reader.refs(start, end))
        )


def _append(first: int, rows: int) -> Committed:
    block = make_block(first, rows)
    marks = tuple((end, Position(f"0/{first + end:X}")) for end in range(1000, rows + 1, 1000))
    if not marks or marks[-1][0] < rows:
        marks = (*marks, (rows, Position(f"0/{first + rows:X}")))
    return Committed((block,), rows, marks)


def make_block(first: int, rows: int, table: Table = TABLE) -> Block:
    """Inserts and updates of rising keys; every fifth row is an update of the row before it."""
    numbers = np.arange(first, first + rows, dtype=np.int64)
    update = numbers % 5 == 4
    ids = pa.array(np.where(update, numbers - 1, numbers))
    strings = ids.cast(pa.string())
    after = pa.StructArray.from_arrays(
        [
            ids,
            pa.array((numbers % 1000).astype(np.int32)),
            _cents(numbers % 100_000),
            pc.binary_join_element_wise("status", pa.array(numbers % 5).cast(pa.string()), " "),
            pc.binary_join_element_wise("note number", strings, " "),
            pa.array(_START_US + numbers * 1_000_000).cast(pa.timestamp("us", tz="UTC")),
            pa.array(numbers % 2 == 0),
            pa.array(numbers * 1.1),
        ],
        fields=list(table.arrow_struct()),
    )  # fmt: skip
    position = pa.DictionaryArray.from_arrays(
        pa.array(((numbers - first) // 1000).astype(np.int32)),
        pa.array([f"0/{first + (i + 1) * 1000:X}" for i in range((rows + 999) // 1000)]),
    )
    columns = {
        "offset": pa.array((numbers - first).astype(np.uint64)),
        "op": pa.array(np.where(update, int(Op.UPDATE), int(Op.INSERT)).astype(np.uint8)),
        "position": position.cast(POSITION),
        "tx_id": pa.array((700 + numbers // 1000).astype(np.uint64)),
        "ordinal": pa.array((numbers % 1000).astype(np.uint32)),
        "commit_time": pa.array(_START_US + numbers).cast(COMMIT_TIME),
        "after": after,
    }
    fields = [META.field(name) if name in META.names else pa.field(name, a.type) for name, a in columns.items()]
    return Block(replace(table), pa.record_batch(list(columns.values()), schema=pa.schema(fields)))


def _cents(values: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    halves = np.zeros((len(values), 2), np.int64)  # 128 bits, the low word first
    halves[:, 0] = values
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(values), [None, pa.py_buffer(halves)])
