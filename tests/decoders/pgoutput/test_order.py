"""However often a structure comes back inside one read, a table's events leave in order, its blocks one by one."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.decoded import follow_each_other
from tests.support.pgstream import decode, tables_of
from tidemill.decoders import pgoutput
from tidemill.decoders.pgoutput.columns import PgOutputCells, convert, strings
from tidemill.errors import DecodeError
from tidemill.model.change import Change, Committed, SpillCommitted, Spilled
from tidemill.model.types import DataType

IDENTITIES = "dfn"


def frame(message: bytes) -> bytes:
    body = b"w" + struct.pack(">QQq", 0, 0, 0) + message
    return b"d" + struct.pack(">I", len(body) + 4) + body


def relation(oid: int, name: str, identity: str) -> bytes:
    columns = b"".join(struct.pack(">B", key) + n + b"\0" + struct.pack(">Ii", 23, -1) for key, n in ((1, b"id"),))
    return frame(
        b"R" + struct.pack(">I", oid) + b"public\0" + name.encode() + b"\0" + identity.encode()
        + struct.pack(">H", 1) + columns
    )  # fmt: skip


def insert(oid: int, number: int) -> bytes:
    text = str(number).encode()
    return frame(
        b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", len(text)) + text
    )


def stream(steps: list[tuple[int, str, str, int]], tx_rows: int) -> bytes:
    """Each step announces a relation (oid, name, identity) and inserts some rows, numbered from 0 over all steps."""
    messages, number, open_tx = [], 0, False
    for oid, name, identity, rows in steps:
        messages.append(relation(oid, name, identity))
        for _ in range(rows):
            if not open_tx:
                messages.append(frame(b"B" + struct.pack(">QqI", 1000 + number, 0, 1000 + number)))
            messages.append(insert(oid, number))
            number, open_tx = number + 1, number % tx_rows != tx_rows - 1
            if not open_tx:
                messages.append(frame(b"C" + struct.pack(">BQQq", 0, 1000 + number, 2000 + number, 0)))
    if open_tx:
        messages.append(frame(b"C" + struct.pack(">BQQq", 0, 1000 + number, 2000 + number, 0)))
    return b"".join(messages)


# Few names and structures, so that they come back, also under another oid.
step = st.tuples(st.integers(1, 3), st.sampled_from(["t", "u"]), st.sampled_from(IDENTITIES), st.integers(0, 4))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(step, max_size=25), st.integers(1, 7), st.lists(st.integers(1, 400), max_size=20),
    st.sampled_from([0, 200, 1 << 24]), st.sampled_from([3, 16, 1 << 10]),
)  # fmt: skip
def test_structures_that_come_back_give_blocks_that_follow_each_other(
    steps: list[tuple[int, str, str, int]], tx_rows: int, chunks: list[int], spill_bytes: int, capacity: int
) -> None:
    changes = decode(stream(steps, tx_rows), tables_of({}), chunks, spill_bytes=spill_bytes, capacity=capacity)
    met: list[int] = []
    spilled: list[int] = []
    for change in changes:
        if isinstance(change, Committed | Spilled):
            follow_each_other(change.blocks)
            into = met if isinstance(change, Committed) else spilled
            rows = [row for block in change.blocks for row in block.batch.to_pylist()]
            into += [row["after"]["id"] for row in sorted(rows, key=lambda row: row["offset"])]
        elif isinstance(change, SpillCommitted):
            met, spilled = met + spilled, []
    assert met == list(range(sum(rows for *_, rows in steps)))


def streamed(message: bytes, xid: int) -> bytes:
    """Messages inside a piece of a streamed transaction name it behind their kind."""
    body = message[5 + 25 :]
    return frame(body[:1] + struct.pack(">I", xid) + body[1:])


def refuse_666(cells: PgOutputCells, kind: DataType) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """A stand-in for a value that cannot be decoded."""
    if "666" in strings(cells).to_pylist():
        raise DecodeError("a value that nobody can read")
    return convert(cells, kind)


def until_refused(data: bytes) -> tuple[list[Change], DecodeError]:
    changes: list[Change] = []
    try:
        changes.extend(
            pgoutput.PgOutputDecoder(pgoutput.DescribedBy(tables_of({})), lambda _kind, _body: None).feed(
                memoryview(data)
            )
        )
    except DecodeError as error:
        return changes, error
    raise AssertionError("everything was decoded")


def test_a_streamed_transaction_that_cannot_be_decoded_counts_where_it_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pgoutput.blocks, "convert", refuse_666)
    begun = frame(b"S" + struct.pack(">IB", 7, 1)) + streamed(relation(1, "t", "d"), 7)
    piece = begun + streamed(insert(1, 666), 7) + frame(b"E")
    other = stream([(2, "u", "d", 1)], 1)
    commit = frame(b"c" + struct.pack(">IBQQq", 7, 0, 0x5000, 0x6000, 0))
    changes, error = until_refused(piece + other + commit)
    assert [change.events for change in changes if isinstance(change, Committed)] == [1]
    assert "transaction 7 at 0/5000" in error.where
    aborted = frame(b"A" + struct.pack(">II", 7, 7))
    assert [c.events for c in decode(piece + aborted + other, tables_of({})) if isinstance(c, Committed)] == [1]


def test_whole_transactions_before_the_one_that_cannot_be_decoded_leave_and_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pgoutput.blocks, "convert", refuse_666)
    bytes_of = stream([(1, "t", "d", 3)], 1) + frame(b"B" + struct.pack(">QqI", 0x9000, 0, 99)) + insert(1, 666)
    bytes_of += frame(b"C" + struct.pack(">BQQq", 0, 0x9000, 0x9100, 0)) + stream([(1, "t", "d", 2)], 1)
    changes, error = until_refused(bytes_of)
    blocks = [block for change in changes if isinstance(change, Committed) for block in change.blocks]
    met = [row["after"]["id"] for block in blocks for row in block.batch.to_pylist()]
    assert met == [0, 1, 2]
    assert "transaction 99 at 0/9000" in error.where
