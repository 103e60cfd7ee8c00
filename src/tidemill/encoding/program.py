"""Writes the programs that `assemble` runs: which constant text and which column follow each other in a document.

A `Program` is built per block, because its steps hold addresses of the block's buffers; it keeps those alive until
it has run. Values nested in lists and structs are rendered first, by programs of their own, one per level.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from tidemill.encoding.assemble import SLACK, ProgramSlot, ProgramStep, assemble
from tidemill.errors import Refused
from tidemill.model.columns import values
from tidemill.model.types import JsonForm


@dataclass(frozen=True, slots=True)
class StringColumn:
    """One text per row: `data[ends[i]:ends[i + 1]]`."""

    data: pa.Buffer
    ends: np.ndarray[Any, np.dtype[np.int64]]

    def __getitem__(self, row: int) -> bytes:
        first, last = int(self.ends[row]), int(self.ends[row + 1])
        return bytes(self.data.slice(first, last - first))

    def array(self, valid: np.ndarray[Any, np.dtype[np.bool_]] | None = None) -> pa.Array:
        bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(
            pa.large_binary(), len(self.ends) - 1, [bitmap, pa.py_buffer(self.ends), self.data]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Odd:
    """Exact texts that replace values: `index[row]` is a place in `strings`, or -1."""

    index: np.ndarray[Any, np.dtype[np.int32]]
    strings: pa.StringArray


_FIXED: dict[pa.DataType, tuple[ProgramStep, int, int]] = {  # step, bytes of a value, longest text
    pa.int8(): (ProgramStep.INT8, 1, 4),
    pa.int16(): (ProgramStep.INT16, 2, 6),
    pa.int32(): (ProgramStep.INT32, 4, 11),
    pa.int64(): (ProgramStep.INT64, 8, 20),
    pa.uint8(): (ProgramStep.UINT8, 1, 3),
    pa.uint16(): (ProgramStep.UINT16, 2, 5),
    pa.uint32(): (ProgramStep.UINT32, 4, 10),
    pa.uint64(): (ProgramStep.UINT64, 8, 20),
    pa.float32(): (ProgramStep.FLOAT32, 4, 26),
    pa.float64(): (ProgramStep.FLOAT64, 8, 26),
    pa.date32(): (ProgramStep.DATE, 4, 20),
    pa.time64("us"): (ProgramStep.TIME, 8, 20),
    pa.timestamp("us"): (ProgramStep.TIMESTAMP, 8, 36),
}
_WIDTHS: dict[int, type[np.generic]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_NARROWED = {pa.float16(): pa.float32(), pa.date64(): pa.date32(), pa.string_view(): pa.large_string()}
_NULL, _NULL_SIZE = b"null", 8


class Program:
    """Steps in order. Text given to `text` is written before the step that follows it."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._steps: list[dict[ProgramSlot, int]] = []
        self._prefixes: list[bytes] = []
        self._pending = b""
        self._alive: list[Any] = []
        self._fixed = 0  # longest row, apart from values of variable size
        self._usual = 0  # typical row, likewise
        self._variable = 0  # bytes of all values of variable size

    def text(self, text: bytes) -> None:
        self._pending += text

    def jump_if_null(self, array: pa.Array) -> int:
        """Returns the step whose target `land` sets."""
        return self._add(ProgramStep.JUMP_IF_NULL, **self._validity(array))

    def jump(self) -> int:
        return self._add(ProgramStep.JUMP)

    def land(self, jumps: Iterable[int]) -> None:
        self._flush()
        for jump in jumps:
            self._steps[jump][ProgramSlot.PARAMETER] = len(self._steps)

    def close(self, text: bytes) -> None:
        """Ends a list of fields that each wrote a comma after themselves."""
        self._flush()
        self._pending = text
        self._add(ProgramStep.CLOSE)

    def mark(self) -> None:
        self._add(ProgramStep.MARK)

    def size(self, label: bytes, *, less: int) -> None:
        """Writes the label and how many bytes were written since the mark before it, without `less`."""
        self._flush()  # what is still pending counts
        self._pending = label
        self._add(ProgramStep.SIZE, 20, PARAMETER=less + len(label))

    def lookup(self, index: np.ndarray[Any, np.dtype[np.int32]], strings: StringColumn, *, bare: bool = False) -> None:
        """Copies `texts[index[row]]`; `bare` leaves out its first and last byte, the quotes. -1 is null."""
        if len(index) and (index == index[0]).all():  # as for all rows of a snapshot's chunk
            text = strings[int(index[0])] if index[0] >= 0 else _NULL
            self.text(text[1:-1] if bare and index[0] >= 0 else text)
            return
        absent = index < 0
        slots = self._bitmap(~absent) if absent.any() else {}
        index = np.ascontiguousarray(index, np.int32)
        self._alive += [index, strings]
        longest = int(np.diff(strings.ends).max(initial=0))
        self._add(
            ProgramStep.LOOKUP, longest + _NULL_SIZE, DATA=strings.data.address, OFFSETS=index.ctypes.data,
            CHILD=strings.ends.ctypes.data, PARAMETER=int(bare), **slots,
        )  # fmt: skip

    def names(
        self, label: bytes, lists: pa.ListArray, names: StringColumn, *, omit: np.ndarray[Any, np.dtype[np.uint8]]
    ) -> None:
        """The label and a list of names by their numbers, in the rows that `omit` does not leave out."""
        self._flush()
        self.text(label)
        numbers = lists.flatten().to_numpy(zero_copy_only=False)
        picked = names.array().take(pa.array(numbers, pa.int64()))
        sizes = pa.compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._alive += [picked, ends, omit]
        buffers = picked.buffers()
        self._variable += picked.nbytes
        self._add(
            ProgramStep.LARGE_LIST, 2, DATA=_address(buffers[2]), OFFSETS=ends.ctypes.data, CHILD=buffers[1].address,
            OMIT=omit.ctypes.data,
        )  # fmt: skip

    def value(self, array: pa.Array, form: JsonForm) -> None:
        if _is_constant(array):
            self.text(render(array.slice(0, 1), form)[0])
        else:
            self._value(array, form, {})

    def field(
        self,
        name: str,
        array: pa.Array,
        form: JsonForm,
        *,
        odd: Odd | None = None,
        omit: np.ndarray[Any, np.dtype[np.uint8]] | None = None,
    ) -> None:
        """A member of an object, with a comma after it that `close` takes back after the last."""
        if odd is None and omit is None and _is_constant(array):
            self.text(quote(name) + b":" + render(array.slice(0, 1), form)[0] + b",")
            return
        slots = {"TAIL": ord(",")}
        if omit is not None:
            self._flush()  # what was pending is not left out with the field
            self._alive.append(omit)
            slots["OMIT"] = omit.ctypes.data
        self.text(quote(name) + b":")
        if odd is not None:
            buffers = odd.strings.buffers()
            self._alive.append(odd)
            self._variable += odd.strings.nbytes
            slots |= {
                "ODD": odd.index.ctypes.data,
                "ODD_OFFSETS": buffers[1].address + 4 * odd.strings.offset,
                "ODD_DATA": _address(buffers[2]),
            }
        self._value(array, form, slots)

    def _value(self, array: pa.Array, form: JsonForm, slots: dict[str, int]) -> None:
        kind = array.type
        if pa.types.is_dictionary(kind):
            return self._value(array.dictionary_decode(), form, slots)
        if plainer := plain_type(kind):
            return self._value(array.cast(plainer), form, slots)
        slots |= self._validity(array)
        self._alive.append(array)
        at, buffers = array.offset, array.buffers()
        if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
            self._add(ProgramStep.TIMESTAMP_UTC, 36, DATA=buffers[1].address + 8 * at, **slots)
        elif kind in _FIXED:
            step, width, longest = _FIXED[kind]
            self._add(step, max(longest, _NULL_SIZE), DATA=_address(buffers[1]) + width * at, **slots)
        elif pa.types.is_boolean(kind):
            self._add(ProgramStep.BOOL, _NULL_SIZE, DATA=_address(buffers[1]), PARAMETER=at, **slots)
        elif pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
            step, width = (ProgramStep.DECIMAL128, 16) if pa.types.is_decimal128(kind) else (ProgramStep.DECIMAL256, 32)
            longest = kind.precision + abs(kind.scale) + 5
            self._add(step, longest, DATA=_address(buffers[1]) + width * at, PARAMETER=kind.scale, **slots)
        elif step_of := _variable_step(kind, form):
            step, width = step_of
            self._variable += _span(buffers[1], at, len(array), width)
            self._add(step, _NULL_SIZE, DATA=_address(buffers[2]), OFFSETS=_address(buffers[1]) + width * at, **slots)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._list(array, slots)
        elif pa.types.is_struct(kind):
            self._strings(_render_struct(array), slots)
        elif pa.types.is_null(kind):
            self._strings(StringColumn(pa.py_buffer(b""), np.zeros(len(array) + 1, np.int64)), slots | self._nothing())
        else:
            raise Refused(f"a column of type {kind} has no JSON form", fix="Leave the column out of the publication.")
        return None

    def _list(self, array: pa.Array, slots: dict[str, int]) -> None:
        wide = pa.types.is_large_list(array.type)
        offsets = array.offsets.to_numpy()
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        # Only the part of the child that this slice uses is rendered; its texts are numbered from `first`.
        strings = render(array.values.slice(first, last - first), _form_of(array.type.value_type))
        self._alive.append(strings)
        self._variable += int(strings.ends[-1]) + last - first
        self._add(
            ProgramStep.LARGE_LIST if wide else ProgramStep.LIST, _NULL_SIZE, DATA=strings.data.address,
            OFFSETS=_address(array.buffers()[1]) + (8 if wide else 4) * array.offset,
            CHILD=strings.ends.ctypes.data - 8 * first, **slots,
        )  # fmt: skip

    def _strings(self, strings: StringColumn, slots: dict[str, int]) -> None:
        self._alive.append(strings)
        self._variable += int(strings.ends[-1])
        self._add(
            ProgramStep.LARGE_JSON, _NULL_SIZE, DATA=strings.data.address, OFFSETS=strings.ends.ctypes.data, **slots
        )

    def _validity(self, array: pa.Array) -> dict[str, int]:
        if not array.null_count or array.buffers()[0] is None:
            return {}
        self._alive.append(array)
        return {"VALID": array.buffers()[0].address, "VALID_BIT": array.offset}

    def _bitmap(self, valid: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, int]:
        bits = np.packbits(valid, bitorder="little")
        self._alive.append(bits)
        return {"VALID": bits.ctypes.data, "VALID_BIT": 0}

    def _nothing(self) -> dict[str, int]:
        return self._bitmap(np.zeros(self._rows, np.bool_))

    def _flush(self) -> None:
        if self._pending:
            self._add(ProgramStep.TEXT)

    def _add(self, step: ProgramStep, longest: int = 0, **slots: int) -> int:
        self._steps.append({ProgramSlot.STEP: int(step)} | {ProgramSlot[name]: value for name, value in slots.items()})
        self._prefixes.append(self._pending)
        self._fixed += len(self._pending) + longest + 1
        self._usual += len(self._pending) + min(longest, 12) + 1
        self._pending = b""
        return len(self._steps) - 1

    def run(self) -> StringColumn:
        """The documents of all rows, one after the other in one buffer."""
        self._flush()
        matrix = np.zeros((len(self._steps), len(ProgramSlot)), np.int64)
        constants = np.frombuffer(b"".join(self._prefixes) + bytes(8), np.uint8)
        at = constants.ctypes.data
        for line, (step, prefix) in enumerate(zip(self._steps, self._prefixes, strict=True)):
            for slot, number in step.items():
                matrix[line, slot] = number
            matrix[line, ProgramSlot.PREFIX], matrix[line, ProgramSlot.PREFIX_SIZE] = at, len(prefix)
            at += len(prefix)
        rows, fixed = self._rows, self._fixed + SLACK
        ends = np.zeros(rows + 1, np.int64)
        scratch, wanted = np.empty(320, np.uint8), np.zeros(1, np.int64)
        out = pa.allocate_buffer(self._usual * rows + self._variable + self._variable // 16 + 2 * fixed)
        done = 0
        while True:
            done = assemble(
                matrix, fixed, done, out.address, out.address + out.size, ends, scratch.ctypes.data, wanted
            )  # fmt: skip
            used = int(ends[done])
            if done == rows:
                return StringColumn(out.slice(0, used), ends)
            expected = used * rows // done if done else 0
            larger = pa.allocate_buffer(max(out.size, expected) * 5 // 4 + int(wanted[0]))
            ctypes.memmove(larger.address, out.address, used)
            out = larger


def render(array: pa.Array, form: JsonForm) -> StringColumn:
    """Every value of a column as JSON text; NULL is `null`."""
    program = Program(len(array))
    program.value(array, form)
    return program.run()


def _is_constant(array: pa.Array) -> bool:
    """Whether it has the same number or time in several rows, or none in all of them: written once, not in each."""
    if len(array) < 2 or array.null_count:
        return bool(len(array) > 1 and array.null_count == len(array))
    if array.type not in _FIXED and not pa.types.is_timestamp(array.type):
        return False
    numbers = values(array, _WIDTHS[array.type.bit_width])
    return bool((numbers == numbers[0]).all())


@functools.lru_cache(maxsize=1024)
def quote(name: str) -> bytes:
    return orjson.dumps(name)


def _render_struct(array: pa.StructArray) -> StringColumn:
    program = Program(len(array))
    program.text(b"{")
    for number, field in enumerate(array.type):
        program.field(field.name, array.field(number), _form_of(field.type))
    program.close(b"}")
    return program.run()


def _form_of(kind: pa.DataType) -> JsonForm:
    """Elements have no form of their own: bytes are base64, and for the rest the Arrow type says it."""
    return JsonForm.BASE64 if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else JsonForm.STRING


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type that holds the same values and has an encoding of its own; None for one that has."""
    if kind in _NARROWED:
        return _NARROWED[kind]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_type)
    if pa.types.is_time(kind) and kind != pa.time64("us"):
        return pa.time64("us")
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return pa.timestamp("us", kind.tz)
    return None


def _variable_step(kind: pa.DataType, form: JsonForm) -> tuple[ProgramStep, int] | None:
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not large and not pa.types.is_string(kind) and not pa.types.is_binary(kind):
        return None
    if form is JsonForm.RAW:
        step = ProgramStep.JSON
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        step = ProgramStep.STRING
    else:
        step = ProgramStep.BINARY
    return (ProgramStep(step + 1), 8) if large else (step, 4)


def _span(offsets: pa.Buffer | None, at: int, rows: int, width: int) -> int:
    if offsets is None or not rows:
        return 0
    ends = np.frombuffer(offsets, np.int32 if width == 4 else np.int64)
    return int(ends[at + rows] - ends[at])


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)
