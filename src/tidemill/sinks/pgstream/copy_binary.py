"""Messages in the binary form of COPY, column by column: what the queue's own table takes, byte for byte.

Fields of a row: a length of 32 bits (-1 for NULL), then the value as the type's receive function wants it, all big
endian. https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.columns import Ints

HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TAIL = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_EPOCH_2000 = 946_684_800_000_000  # microseconds since 1970


class CopyRows:
    """Rows of a table under construction: add one column after the other, in the order of COPY's list."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pieces: list[pa.Array] = []
        self._fields = 0

    def integers(self, values: Ints, *, size: int = 8) -> None:
        kind = np.dtype([("length", ">i4"), ("value", f">i{size}")])
        packed = np.empty(self._rows, kind)
        packed["length"], packed["value"] = size, values
        self._add(_fixed_array(packed, 4 + size))

    def timestamps(self, values: pa.Array) -> None:
        """timestamptz, from microseconds since 1970; pg_lsn and bigint that may be null go through `numbers`."""
        self.numbers(pc.subtract(values.cast(pa.int64()), _EPOCH_2000))

    def numbers(self, values: pa.Array) -> None:
        """Eight bytes each, or NULL."""
        kind = np.dtype([("length", ">i4"), ("value", ">i8")])
        packed = np.empty(self._rows, kind)
        packed["length"] = 8
        packed["value"] = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64).view(np.int64)
        whole = _fixed_array(packed, 12)
        if values.null_count:
            whole = pc.if_else(values.is_valid(), whole, pa.scalar(_NULL, pa.large_binary()))
        self._add(whole)

    def strings(self, values: pa.Array, *, before: bytes = b"") -> None:
        """Text or bytes of any length. `before` stands in front of each, as jsonb's version number does."""
        values = values.cast(pa.large_binary())
        sizes = pc.add(pc.binary_length(values), len(before)).fill_null(-1)
        lengths = sizes.to_numpy(zero_copy_only=False).astype(">i4")
        head = _fixed_array(lengths, 4)
        if before:
            head = pc.binary_join_element_wise(head, pa.scalar(before, pa.large_binary()), _NOTHING)
            head = pc.if_else(values.is_valid(), head, pa.scalar(_NULL, pa.large_binary()))
        self._add(head, values.fill_null(b"") if values.null_count else values)

    def constant(self, value: bytes) -> None:
        """The same in all rows: it costs no array."""
        self._pieces.append(pa.scalar(len(value).to_bytes(4, "big") + value, pa.large_binary()))
        self._fields += 1

    def nothing(self) -> None:
        self._pieces.append(pa.scalar(_NULL, pa.large_binary()))
        self._fields += 1

    def finish(self) -> pa.Buffer:
        """All rows, one after the other, without HEAD and TAIL."""
        count = pa.scalar(self._fields.to_bytes(2, "big"), pa.large_binary())
        joined = pc.binary_join_element_wise(count, *self._pieces, _NOTHING)
        ends = np.frombuffer(joined.buffers()[1], np.int64)[joined.offset : joined.offset + len(joined) + 1]
        return joined.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0]))

    def _add(self, *pieces: pa.Array) -> None:
        self._pieces += pieces
        self._fields += 1


_NOTHING = pa.scalar(b"", pa.large_binary())


def _fixed_array(values: np.ndarray[Any, Any], width: int) -> pa.Array:
    """Records of one width as byte strings, without a copy."""
    ends = np.arange(0, width * (len(values) + 1), width, dtype=np.int64)
    return pa.Array.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values))]
    )
