"""What the decoder keeps of its connection: rows that `scan` noted, tables, and names of transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders._shared import eight_bytes
from tidemill.decoders._shared.mysql.table_map import TableMap
from tidemill.decoders.binlog import cells
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.columns import Converter, converter
from tidemill.errors import SKIP, DecodeError
from tidemill.model.columns import Ints
from tidemill.model.table import Table

_MOST_NUMBERS, _MOST_BYTES = 100_000, 64 << 20


class BinlogRows:
    """What `scan` notes, one vector per fact. Reused for the whole connection."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.op = np.empty(capacity, np.uint8)
        self.slot, self.old, self.new, self.fill, self.event, self.tx = (np.empty(capacity, np.int32) for _ in range(6))
        self.ev_old, self.ev_new = (np.empty(capacity, np.int32) for _ in range(2))
        self.ev_flags = np.empty(capacity, np.uint8)
        self.tx_name, self.tx_file = (np.empty(capacity + 2, np.int32) for _ in range(2))
        self.tx_no, self.tx_time, self.tx_xid, self.tx_end, self.tx_row = (
            np.empty(capacity + 2, np.int64) for _ in range(5)
        )

    def vectors(self) -> tuple[npt.NDArray[Any], ...]:
        return (
            self.op, self.slot, self.old, self.new, self.fill, self.event, self.tx,
            self.ev_old, self.ev_new, self.ev_flags,
            self.tx_name, self.tx_no, self.tx_time, self.tx_xid, self.tx_end, self.tx_file, self.tx_row,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table at one shape: its columns' converters, where its row program begins, and defaults (`defaults`)."""

    table: Table
    converters: tuple[Converter, ...]
    first: int
    defaults: tuple[str | None, ...]


@dataclass(slots=True)
class TableNumbers:
    """Tables by the binlog's number for them. A table that changes gets a new number, so rows noted earlier keep their
    shape (invariant 6). The TABLE_MAP a number was learned from is kept byte for byte: another one is a new table."""

    slots: list[TableShape] = field(default_factory=list)
    _made: dict[tuple[object, ...], int] = field(default_factory=dict)
    ids: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    slot_of: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    body_at: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    body_size: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    bodies: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(1, np.uint8))
    width: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    first_of: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    program: npt.NDArray[np.int16] = field(default_factory=lambda: np.zeros(1, np.int16))
    keys: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(1, np.uint8))
    keyed: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(1, np.uint8))
    _used: int = 0  # of `bodies`

    def vectors(self) -> tuple[npt.NDArray[Any], ...]:
        return (
            self.ids, self.slot_of, self.body_at, self.body_size, self.bodies,
            self.width, self.first_of, self.program, self.keys, self.keyed,
        )  # fmt: skip

    def slot(self, shape: TableMap, table: Table, defaults: tuple[str | None, ...]) -> int:
        """The same table with the same physical columns and defaults has the same slot, whatever its number."""
        name = (f"{table.fingerprint}/{table.version}/{table.full_name}", shape.types, shape.metadata, defaults)
        if name not in self._made:
            self._made[name] = self._add(shape, table, defaults)
        return self._made[name]

    @property
    def crowded(self) -> bool:
        """Numbers rise for ever; those of long ago are not met again."""
        return len(self.ids) > _MOST_NUMBERS or self._used > _MOST_BYTES

    def point(self, table_id: int, slot: int, body: bytes) -> None:
        if self._used + len(body) > len(self.bodies):
            larger = np.empty(2 * (self._used + len(body)), np.uint8)
            larger[: self._used] = self.bodies[: self._used]
            self.bodies = larger
        self.bodies[self._used : self._used + len(body)] = np.frombuffer(body, np.uint8)
        at = int(np.searchsorted(self.ids, table_id))
        if at == len(self.ids) or self.ids[at] != table_id:
            self.ids = np.insert(self.ids, at, table_id)
            self.slot_of, self.body_at, self.body_size = (
                np.insert(v, at, 0) for v in (self.slot_of, self.body_at, self.body_size)
            )
        self.slot_of[at], self.body_at[at], self.body_size[at] = slot, self._used, len(body)
        self._used += len(body)

    def forget(self) -> None:
        """Numbers start again with a server's restart, and a DDL makes them void. Every statement describes its tables
        again, so between transactions nothing is lost by it."""
        self.ids = self.slot_of = self.body_at = self.body_size = np.empty(0, np.int64)
        self._used = 0

    def _add(self, shape: TableMap, table: Table, defaults: tuple[str | None, ...]) -> int:
        if len(table.columns) != len(shape.types):
            raise DecodeError(
                f"table {table.full_name} has {len(table.columns)} columns, but the binlog has {len(shape.types)}",
                fix=f"Set binlog_row_metadata=FULL at the server: the binlog has the names itself then. {SKIP}",
            )
        made = tuple(
            converter(k, meta, c) for k, meta, c in zip(shape.types, shape.metadata, table.columns, strict=True)
        )
        first = len(self.program)
        self.slots.append(TableShape(table, made, first, defaults))
        flags = [c.name in table.key for c in table.columns]
        self.program = np.append(self.program, np.array([c.step for c in made], np.int16))
        self.keys = np.append(self.keys, np.array(flags, np.uint8))
        self.width = np.array([len(s.converters) for s in self.slots], np.int64)
        self.first_of = np.array([s.first for s in self.slots], np.int64)
        self.keyed = np.array([bool(s.table.key) for s in self.slots], np.uint8)
        return len(self.slots) - 1


@dataclass(frozen=True, slots=True)
class Uuid:
    """A MySQL server that counts transactions, and the tag it counts them under."""

    uuid: str
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    """A MariaDB domain that counts transactions, and the server that wrote them."""

    domain: int
    server: int


@dataclass(frozen=True, slots=True)
class TransactionName:
    """What a transaction's number is counted by: `prefix` and the number are its position. No counter: a file."""

    prefix: str
    counter: Uuid | Domain | None = None


class Names:
    """Servers and files met so far, numbered. Those that the binlog names by bytes are found by `scan` itself."""

    def __init__(self) -> None:
        self._all = [TransactionName("")]
        self._numbers: dict[TransactionName, int] = {self._all[0]: scanning.ANONYMOUS}
        self._high: list[int] = []
        self._low: list[int] = []
        self._of: list[int] = []
        self._index()

    def __getitem__(self, number: int) -> TransactionName:
        return self._all[number]

    def vectors(self) -> tuple[Ints, Ints, Ints]:
        return self._vectors

    def number(self, name: TransactionName, key: bytes | None = None) -> int:
        """`key`: sixteen bytes that `scan` will know it by."""
        if name not in self._numbers:
            self._numbers[name] = len(self._all)
            self._all.append(name)
            self._index()
        number = self._numbers[name]
        if key is not None and number not in self._of:
            self._high.append(int.from_bytes(key[:8], "little", signed=True))
            self._low.append(int.from_bytes(key[8:], "little", signed=True))
            self._of.append(number)
            self._index()
        return number

    def positions(self, name: npt.NDArray[np.int32], number: Ints) -> pa.Array:
        offsets = np.empty(len(name) + 1, np.int32)
        out = np.empty(int(self._size[name].sum()) + 20 * len(name) + eight_bytes.ROOM, np.uint8)
        size = cells.positions(name, number, self._at, self._text, offsets, out)
        return pa.Array.from_buffers(
            pa.string(), len(name), [None, pa.py_buffer(offsets), pa.py_buffer(out[:size].copy())]
        )

    def _index(self) -> None:
        prefixes = [name.prefix.encode() for name in self._all]
        self._size = np.array([len(text) for text in prefixes], np.int64)
        self._at = np.concatenate([[0], np.cumsum(self._size)]).astype(np.int64)
        self._text = np.frombuffer(b"".join(prefixes) + bytes(eight_bytes.ROOM), np.uint8).copy()
        self._vectors = (np.array(self._high, np.int64), np.array(self._low, np.int64), np.array(self._of, np.int64))
