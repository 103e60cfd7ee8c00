"""MySQL's binary JSON: the kernel and the slow way agree, on documents of a server and on damaged ones."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoders.binlog.kinds import KINDS
from tests.support.binlogstream import MapTables, decode, end_of_binlog, record
from tests.support.seed import run_seed
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders.binlog import cells
from tidemill.decoders.binlog.column import BinlogCells
from tidemill.decoders.binlog.json import documents
from tidemill.decoders.binlog.json import text as kernel
from tidemill.decoders.binlog.json import value as values
from tidemill.errors import DecodeError
from tidemill.lab.servers.mysql_family import Server

SEED = run_seed()


def column(values: list[bytes]) -> BinlogCells:
    sizes = np.array([len(value) for value in values], np.int32)
    at = (np.cumsum(sizes) - sizes).astype(np.int32)
    buffer = np.frombuffer(b"".join(values) + bytes(8), np.uint8)
    return BinlogCells(buffer, at, sizes, np.full(len(values), cells.VALUE, np.uint8))


@pytest.fixture(scope="module")
def stored(mysql: Server) -> Iterator[list[bytes]]:
    """Binary documents as the server stores them, taken from its binlog before they become text."""
    expressions = next(kind for kind in KINDS if kind.type == "json").values(random.Random(SEED))
    mysql.query("CREATE DATABASE documents")
    mysql.query("CREATE TABLE documents.j (id int PRIMARY KEY, v json)")
    begin = end_of_binlog(mysql)
    for i, expression in enumerate(expressions):
        mysql.query(f"INSERT IGNORE INTO documents.j VALUES ({i}, {expression})")
    found: list[bytes] = []
    converted = documents.text

    def noted(value: bytes) -> str:
        found.append(value)
        return converted(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "strings", lambda *a: (a[-1].fill(True), a[-3].fill(0), len(a[1]))[-1])
        patch.setattr(documents, "text", noted)
        decode(record(mysql, begin), MapTables(), Flavor.MYSQL)
    yield found
    mysql.query("DROP DATABASE documents")


def test_the_kernel_writes_what_the_slow_way_writes(stored: list[bytes]) -> None:
    assert len(stored) > 100
    array, bad = documents.convert(column(stored))
    assert bad is None
    for value, text in zip(stored, array.to_pylist(), strict=True):
        assert text == documents.text(value), f"seed {SEED}"


def test_only_documents_with_opaque_values_take_the_slow_way(stored: list[bytes]) -> None:
    ordinary = [value for value in stored if '"base64' not in documents.text(value) and b"\x0f" not in value]
    assert len(ordinary) > 60
    given_, offsets = column(ordinary), np.empty(len(ordinary) + 1, np.int32)
    out, slow = np.empty(1 << 22, np.uint8), np.zeros(len(ordinary), np.bool_)
    left = kernel.strings(given_.buffer, given_.at, given_.size, given_.kind, True, offsets, out, slow)
    assert left == 0, f"seed {SEED}: {[documents.text(ordinary[i])[:80] for i in np.flatnonzero(slow)]}"


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_written_alike(value: float) -> None:
    document = b"\x0b" + struct.pack("<d", value)
    (text,) = documents.convert(column([document]))[0].to_pylist()
    assert text == values.double_text(value)
    assert float(text) == value
    assert math.copysign(1, float(text)) == math.copysign(1, value)


def test_damaged_documents_are_refused_or_read_alike(stored: list[bytes]) -> None:
    pick = random.Random(SEED)
    small = [value for value in stored if 4 < len(value) < 400]
    refused = 0
    for _ in range(2_000):
        value = bytearray(pick.choice(small))
        for _ in range(pick.choice((1, 1, 2))):
            value[pick.randrange(len(value))] = pick.choice((0, 1, 2, 127, 255, pick.randrange(256)))
        damaged = bytes(value[: pick.randint(1, len(value))] if pick.random() < 0.3 else value)
        try:
            slow: str | None = documents.text(damaged)
        except DecodeError:
            slow = None
            refused += 1
        try:
            (fast,) = documents.convert(column([damaged]))[0].to_pylist()
        except DecodeError:
            fast = None
        # A name that comes twice stays twice in the text of the kernel; no server writes such a document.
        assert fast == slow or (slow is not None and fast is not None and len(fast) > len(slow)), damaged.hex()
    assert refused > 100
