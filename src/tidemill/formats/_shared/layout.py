"""Writes the layouts that `binary` runs: which constant bytes and which column follow each other in a document.

A `Layout` is built per block, because its steps hold addresses of the block's buffers; it keeps those alive until it
has run. Elements of lists are laid out first, by layouts of their own, one per level.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.encoding.program import StringColumn, plain_type
from tidemill.formats._shared.binary import SLACK, LayoutSlot, LayoutStep, lay_out

NOTHING = -1
"""A null leaves no byte behind."""

_WIDTHS = {
    **dict.fromkeys((LayoutStep.ZIGZAG8, LayoutStep.ZIGZAG_U8, LayoutStep.VARINT8), 1),
    **dict.fromkeys((LayoutStep.ZIGZAG16, LayoutStep.ZIGZAG_U16, LayoutStep.VARINT16), 2),
    **dict.fromkeys((LayoutStep.ZIGZAG32, LayoutStep.ZIGZAG_U32, LayoutStep.VARINT32, LayoutStep.FIXED32), 4),
    **dict.fromkeys((LayoutStep.ZIGZAG64, LayoutStep.VARINT64, LayoutStep.FIXED64, LayoutStep.BIG_ENDIAN_U64), 8),
    **dict.fromkeys((LayoutStep.BIG_ENDIAN128, LayoutStep.DECIMAL128), 16),
    **dict.fromkeys((LayoutStep.BIG_ENDIAN256, LayoutStep.DECIMAL256), 32),
}
_LONGEST = {LayoutStep.BIG_ENDIAN128: 17, LayoutStep.BIG_ENDIAN256: 33}  # others: 11 bytes are enough


class Layout:
    """Steps in order. `null` is the byte that stands for a null value, or `NOTHING`."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._steps: list[dict[str, int]] = []
        self._prefixes: list[bytes] = []
        self._pending = b""
        self._alive: list[Any] = []
        self._fixed = 0  # longest document, apart from values of variable size
        self._variable = 0  # bytes of all values of variable size

    def constant(self, text: bytes) -> None:
        self._pending += text

    def skip_if_null(self, array: pa.Array, prefix: bytes, null: int) -> int | None:
        """Where the array is null, everything up to `land` is left out. None: it is null nowhere."""
        if not array.null_count:
            self.constant(prefix)
            return None
        return self._add(LayoutStep.SKIP_IF_NULL, prefix, 1, NULL=null, **self._validity(array))

    def land(self, skip: int | None) -> None:
        if skip is not None:
            self._flush()
            self._steps[skip]["PARAMETER"] = len(self._steps)

    def value(
        self, step: LayoutStep, array: pa.Array, prefix: bytes = b"", null: int = NOTHING, parameter: int = 0
    ) -> None:
        """A column of fixed width, text or bytes. `parameter` is a decimal's scale, or the shift of a length."""
        buffers, at = array.buffers(), array.offset
        slots = {"NULL": null, "PARAMETER": parameter, **self._validity(array)}
        self._alive.append(array)
        if step in (LayoutStep.BYTES32, LayoutStep.BYTES64):
            width = 4 if step is LayoutStep.BYTES32 else 8
            self._variable += _span(buffers[1], at, len(array), width)
            self._add(step, prefix, 11, DATA=_address(buffers[2]), OFFSETS=_address(buffers[1]) + width * at, **slots)
        elif step is LayoutStep.BOOL:
            self._add(step, prefix, 11, **{**slots, "DATA": _address(buffers[1]), "PARAMETER": at})
        else:
            longest = _LONGEST.get(step, 11)
            if step in (LayoutStep.DECIMAL128, LayoutStep.DECIMAL256):
                longest = array.type.precision + abs(array.type.scale) + 6
            self._add(step, prefix, longest, DATA=_address(buffers[1]) + _WIDTHS[step] * at, **slots)

    def strings(self, strings: StringColumn, prefix: bytes = b"", valid: pa.Array | None = None) -> None:
        """Documents that were laid out before, each with the count of its bytes; nothing where `valid` is null."""
        self._alive.append(strings)
        self._variable += int(strings.ends[-1])
        slots = {"NULL": NOTHING} | (self._validity(valid) if valid is not None else {})
        self._add(LayoutStep.BYTES64, prefix, 11, DATA=strings.data.address, OFFSETS=strings.ends.ctypes.data, **slots)

    def elements(
        self, step: LayoutStep, lists: pa.Array, strings: StringColumn, prefix: bytes, null: int = NOTHING
    ) -> None:
        """A list whose elements were laid out before. `step` is the narrow one of its kind."""
        wide = pa.types.is_large_list(lists.type)
        first = int(lists.offsets[0].as_py()) if len(lists) else 0
        self._alive += [lists, strings]
        self._variable += int(strings.ends[-1])
        self._add(
            LayoutStep(step + wide), prefix, 12, DATA=strings.data.address,
            OFFSETS=_address(lists.buffers()[1]) + (8 if wide else 4) * lists.offset,
            CHILD=strings.ends.ctypes.data - 8 * first, NULL=null, **self._validity(lists),
        )  # fmt: skip

    def run(self) -> StringColumn:
        """The documents of all rows, one after the other in one buffer."""
        self._flush()
        matrix = np.zeros((len(self._steps), len(LayoutSlot)), np.int64)
        constants = np.frombuffer(b"".join(self._prefixes) + bytes(8), np.uint8)
        at = constants.ctypes.data
        for line, (step, prefix) in enumerate(zip(self._steps, self._prefixes, strict=True)):
            for name, number in step.items():
                matrix[line, LayoutSlot[name]] = number
            matrix[line, LayoutSlot.PREFIX], matrix[line, LayoutSlot.PREFIX_SIZE] = at, len(prefix)
            at += len(prefix)
        ends = np.zeros(self._rows + 1, np.int64)
        scratch = np.empty(320, np.uint8)
        # Pages that no document reaches are never touched, so generous room costs addresses, not memory.
        out = pa.allocate_buffer(self._fixed * self._rows + self._variable + SLACK)
        lay_out(matrix, out.address, ends, scratch.ctypes.data)
        return StringColumn(out.slice(0, int(ends[-1])), ends)

    def _validity(self, array: pa.Array) -> dict[str, int]:
        if not array.null_count or array.buffers()[0] is None:
            return {}
        self._alive.append(array)
        return {"VALID": array.buffers()[0].address, "VALID_BIT": array.offset}

    def _flush(self) -> None:
        if self._pending:
            text, self._pending = self._pending, b""
            self._append(LayoutStep.CONSTANT, text, 0, {})

    def _add(self, step: LayoutStep, prefix: bytes, longest: int, **slots: int) -> int:
        if "VALID" not in slots:  # always there: what stands before it is as constant as its own prefix
            prefix, self._pending = self._pending + prefix, b""
        self._flush()
        return self._append(step, prefix, longest, slots)

    def _append(self, step: LayoutStep, prefix: bytes, longest: int, slots: dict[str, int]) -> int:
        self._steps.append({"STEP": int(step), **slots})
        self._prefixes.append(prefix)
        self._fixed += len(prefix) + longest + 1
        return len(self._steps) - 1


def plain(array: pa.Array) -> pa.Array:
    """The same values in a type that the encoders know: dictionaries decoded, units made microseconds."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = plain_type(array.type)
    return array if kind is None else array.cast(kind)


def list_values(lists: pa.Array) -> pa.Array:
    """The elements that the rows of this slice use, in order."""
    offsets = lists.offsets
    first, last = (offsets[0].as_py(), offsets[-1].as_py()) if len(lists) else (0, 0)
    return lists.values.slice(first, last - first)


def varint(value: int) -> bytes:
    """A constant of a layout."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _span(offsets: pa.Buffer | None, at: int, rows: int, width: int) -> int:
    if offsets is None or not rows:
        return 0
    ends = np.frombuffer(offsets, np.int32 if width == 4 else np.int64)
    return int(ends[at + rows] - ends[at])


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)
