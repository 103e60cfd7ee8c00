"""A COPY's rows: what is read while cells are found equals what the converters of the stream make of the same text."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tests.support.seed import dice
from tidemill.decoders.pgoutput import CopyTextDecoder, RowMemory, copy_rows
from tidemill.decoders.pgoutput.copy_text import _MOST_CELLS
from tidemill.errors import DecodeError
from tidemill.model.block import Block
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

KINDS: dict[str, pa.DataType] = {
    "smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64(), "oid": pa.uint32(), "boolean": pa.bool_(),
    "numeric(12,2)": pa.decimal128(12, 2), "numeric(18,0)": pa.decimal128(18, 0), "double precision": pa.float64(),
    "date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
# As PostgreSQL 18 prints them, and what no server prints.
TEXTS = (
    "0", "7", "-1", "32767", "32768", "-32768", "-32769", "2147483647", "2147483648", "4294967295", "4294967296",
    "999999999999999999", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551616",
    "t", "f", "true", "-", "", "1.", ".5", "1.50", "-0.01", "9999999999.99", "10000000000.00", "1.5", "1.505", "NaN",
    "Infinity", "-Infinity", "-0", "0.1", "9007199254740992", "9007199254740993", "0.30000000000000004", "1e+300",
    "5e-324", "123456.78901234567", "2024-02-29", "1969-12-31", "1970-01-01", "9999-12-31", "10000-01-01",
    "0044-03-15 BC",
    "2024-02-29 12:34:56", "2024-02-29 12:34:56.5", "2024-02-29 12:34:56.123456", "2024-02-29 12:34:56.1234567",
    "1969-12-31 23:59:59.999999", "2024-02-29 24:00:00", "2024-13-01 00:00:00", "2024-02-29 12:34:56+00",
    "2024-02-29 12:34:56.5+00", "2000-01-01 00:00:00.000001+00", "2024-02-29 12:34:56+01", "infinity",
    "2024-02-29T12:34:56",)  # fmt: skip


def make_table(kinds: Sequence[str]) -> Table:
    columns = [Column(f"c{n}", DataType(kind, _arrow(kind), JsonForm.STRING)) for n, kind in enumerate(kinds)]
    return Table("shop", "public", "t", tuple(columns), ()).with_fingerprint()


def _arrow(kind: str) -> pa.DataType:
    return KINDS.get(kind, pa.string())


def escape(text: str | None) -> str:
    if text is None:
        return "\\N"
    for plain, escaped in {
        "\\": "\\\\",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
    }.items():
        text = text.replace(plain, escaped)
    return text


def frames(rows: Sequence[Sequence[str | None]]) -> bytes:
    lines = [("\t".join(map(escape, row)) + "\n").encode() for row in rows]
    return b"".join(b"d" + struct.pack(">I", len(line) + 4) + line for line in lines)


def buffer_of(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytearray(data + bytes(CopyTextDecoder.ROOM)), np.uint8)


def decode(table: Table, data: bytes, memory: RowMemory | None = None) -> list[Block]:
    decoder, buffer, place, blocks = CopyTextDecoder(table, memory), buffer_of(data), 0, []
    while True:
        place, status = decoder.scan(buffer, len(data), place)
        if (block := decoder.take(buffer)) is not None:
            blocks.append(block)
        if status != decoder.FULL:
            assert place == len(data)
            return blocks


def by_converters(table: Table) -> RowMemory:
    memory = RowMemory(table)
    memory.how[:] = copy_rows.CELL
    return memory


def assert_equal(found: list[Block], wanted: list[Block]) -> None:
    assert [_bits(block) for block in found] == [_bits(block) for block in wanted]


def _bits(block: Block) -> list[pa.Array]:
    """Floats as their bits: a NaN equals itself then, and 0 is not -0."""
    after = block.struct("after")
    assert after is not None
    columns = list(after.values())
    rest = [array for name, array in zip(block.batch.schema.names, block.batch.columns, strict=True) if name != "after"]
    return rest + [each.view(pa.int64()) if pa.types.is_float64(each.type) else each for each in columns]


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_read_at_once_as_the_converters_read_it(kind: str) -> None:
    table = make_table([kind, "text"])
    at_once = 0
    for text in (*TEXTS, None):
        data, memory = frames([[text, "next"]]), RowMemory(table)
        assert_equal(decode(table, data, memory), decode(table, data, by_converters(table)))
        at_once += int(memory.how[0] != copy_rows.CELL)
    assert at_once > 2, "some of them are of the usual form"


@pytest.mark.parametrize("kind", ["double precision", "numeric(12,2)", "bigint", "timestamptz", "date"])
def test_random_values_are_read_at_once_as_the_converters_read_them(kind: str) -> None:
    luck = dice("copy text", kind)
    table = make_table([kind])
    data = frames([[_print(kind, luck)] for _ in range(2000)])
    memory = RowMemory(table)
    assert_equal(decode(table, data, memory), decode(table, data, by_converters(table)))
    assert memory.how[0] != copy_rows.CELL, "all of them are of the usual form"


def _print(kind: str, luck: Random) -> str | None:
    if luck.random() < 0.05:
        return None
    sign, number = luck.choice(("", "-")), luck.randrange(10 ** luck.randint(1, 15))
    day = f"{luck.randint(1970, 9999)}-{luck.randint(1, 12):02}-{luck.randint(1, 28):02}"
    match kind:
        case "double precision":
            places = luck.randint(0, 15)
            digits = f"{number:0{places + 1}}"
            return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)
        case "numeric(12,2)":
            return f"{sign}{number % 10**10}.{luck.randrange(100):02}"
        case "bigint":
            return f"{sign}{number * luck.randint(1, 9000)}"
        case "date":
            return day
        case _:
            fraction = luck.choice(("", f".{luck.randrange(1, 10):01}", f".{luck.randrange(1, 10**6):06}"))
            return f"{day} {luck.randint(0, 23):02}:{luck.randint(0, 59):02}:{luck.randint(0, 59):02}{fraction}+00"


def test_a_column_that_turns_out_to_be_unusual_is_converted_from_its_first_row_on() -> None:
    table = make_table(["bigint", "timestamptz", "text"])
    usual: list[list[str | None]] = [[str(n), f"2024-02-29 12:34:{n % 60:02}+00", f"a\tb\\ {n}"] for n in range(100)]
    unusual = [*usual, ["100", "-infinity", None], [None, "0044-03-15 00:00:00+00 BC", "last"]]
    data, memory = frames(unusual), RowMemory(table)
    found = decode(table, data, memory)
    assert_equal(found, decode(table, data, by_converters(table)))
    assert list(memory.how != copy_rows.CELL) == [True, False, False]
    after = found[0].struct("after")
    assert after is not None
    assert after["c2"].to_pylist() == [*(f"a\tb\\ {n}" for n in range(100)), None, "last"]
    assert [odd for odd in found[0].batch.column("odd").to_pylist() if odd] == [
        [{"side": 2, "column": 1, "text": "-infinity"}]
    ]
    assert_equal(decode(table, frames(usual), memory), decode(table, frames(usual), by_converters(table)))


def test_bytes_that_come_one_by_one_make_the_same_rows() -> None:
    table = make_table(["integer", "text", "boolean"])
    data = frames([["1", "a\nb", "t"], ["22", None, None], [None, "", "f"], ["x", "no number", "t"]])
    decoder, buffer, place = CopyTextDecoder(table), buffer_of(data), 0
    for end in range(len(data) + 1):
        place, status = decoder.scan(buffer, end, place)
        assert status == decoder.MORE
    block = decoder.take(buffer)
    assert block is not None
    assert_equal([block], decode(table, data))


def test_many_columns_make_blocks_of_fewer_rows() -> None:
    table = make_table(["integer"] * 400)
    rows = [[str(n)] * 400 for n in range(3000)]
    blocks = decode(table, frames(rows))
    assert [block.rows for block in blocks] == [_MOST_CELLS // 400] * 2 + [3000 - 2 * (_MOST_CELLS // 400)]
    assert [row["ordinal"] for block in blocks for row in block.batch.select(["ordinal"]).to_pylist()] == list(
        range(3000)
    )


def test_flipped_and_missing_bytes_give_a_decode_error_or_rows_and_nothing_else() -> None:
    luck = dice("copy text flips")
    table = make_table(["bigint", "numeric(12,2)", "double precision", "timestamptz", "date", "boolean", "text"])
    row = ["12345", "-99.50", "0.25", "2024-02-29 12:34:56.5+00", "2024-02-29", "t", "a\\b\tc"]
    data = frames([row, [None] * 7, row])
    for _ in range(3000):
        broken = bytearray(data[: luck.randint(1, len(data))] if luck.random() < 0.2 else data)
        for _ in range(luck.randint(1, 3)):
            broken[luck.randrange(len(broken))] = luck.choice(b"\t\n\\N0-.:d \xff")
        decoder, buffer = CopyTextDecoder(table), buffer_of(bytes(broken))
        try:
            decoder.scan(buffer, len(broken), 0)
            decoder.take(buffer)
        except DecodeError:
            continue


def test_rows_of_another_table_get_memory_of_their_own() -> None:
    narrow, wide = make_table(["bigint"]), make_table(["bigint", "text"])
    decoder = CopyTextDecoder(narrow)
    assert CopyTextDecoder(narrow, decoder.memory).memory is decoder.memory
    assert CopyTextDecoder(replace(narrow, name="other"), decoder.memory).memory is decoder.memory
    assert CopyTextDecoder(wide, decoder.memory).memory is not decoder.memory
