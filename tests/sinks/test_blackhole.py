"""The blackhole sink: encodes all of it, keeps only the count."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Literal

import pyarrow as pa
import pytest

from tests.support.blocks import make_block
from tests.support.deliveries import make_deliveries, make_events
from tidemill.errors import Refused
from tidemill.formats.json import JsonFormat
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks._shared.lines import WINDOW, Encoding
from tidemill.sinks.blackhole import BlackholeConfig, BlackholeSink


@pytest.mark.parametrize("envelope", ["native", "debezium"])
def test_it_counts_the_bytes_that_its_format_makes(envelope: Literal["native", "debezium"]) -> None:
    sink = BlackholeSink(BlackholeConfig(id="nowhere", envelope=envelope))
    blocks = make_events(40)
    receipts = [sink.write(d) for d in make_deliveries(blocks, 0, 40)]
    assert sum(r.events for r in receipts) == sink.events == 40
    expected = sum(JsonFormat(envelope).batch(block, "orders").size for block in blocks)
    assert sum(r.bytes for r in receipts) == sink.bytes == expected
    assert all(r.encode_seconds > 0 for r in receipts)


def _pieces(block: Block, format: JsonFormat, lanes: int = 1) -> list[bytes]:
    delivery = Delivery("shop", "orders", 0, block.rows, 0, lanes, lambda: iter([block]))
    return [piece.to_pybytes() for piece in Encoding(delivery, format).pieces(block)]


def test_a_block_larger_than_a_window_is_encoded_in_pieces() -> None:
    block = make_block(2 * WINDOW + 7)
    pieces = _pieces(block, JsonFormat(), lanes=4096)  # as many as there are cores: none is idle
    assert len(pieces) == 3
    assert b"".join(pieces) == JsonFormat().batch(block, "orders").to_pybytes()


def test_pieces_that_are_encoded_side_by_side_come_in_order_and_are_no_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    block = make_block(3 * WINDOW + 7)
    pieces = _pieces(block, JsonFormat())
    assert b"".join(pieces) == JsonFormat().batch(block, "orders").to_pybytes()
    assert all(piece.count(b"\n") <= WINDOW for piece in pieces)


def test_what_one_piece_cannot_say_is_raised_behind_the_pieces_before_it_and_no_thread_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block, format, encode = make_block(3 * WINDOW), JsonFormat(), JsonFormat.batch
    before = threading.active_count()
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def fail_late(self: JsonFormat, window: Block, source: str) -> pa.Buffer:
        if window.offsets()[0] > block.offsets()[WINDOW]:
            raise Refused("a value has no JSON form")
        return encode(self, window, source)

    monkeypatch.setattr(JsonFormat, "batch", fail_late)
    delivery = Delivery("shop", "orders", 0, block.rows, 0, 1, lambda: iter([block]))
    encoding = Encoding(delivery, format)
    with pytest.raises(Refused, match="no JSON form"):
        list(encoding.pieces(block))
    assert 0 < encoding.events <= 2 * WINDOW
    assert threading.active_count() == before


def test_who_leaves_pieces_early_leaves_no_thread_behind() -> None:
    block, before = make_block(3 * WINDOW), threading.active_count()
    delivery = Delivery("shop", "orders", 0, block.rows, 0, 1, lambda: iter([block]))
    with contextlib.closing(Encoding(delivery, JsonFormat()).pieces(block)) as pieces:
        assert next(pieces).size
    assert threading.active_count() == before
