"""The blackhole sink: encodes all of it, keeps only the count."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.support.blocks import make_block
from tests.support.deliveries import make_deliveries, make_events
from tidemill.formats.json import JsonFormat
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


def test_a_block_larger_than_a_window_is_encoded_in_pieces() -> None:
    block = make_block(2 * WINDOW + 7)
    delivery = Delivery("shop", "orders", 0, block.rows, 0, 1, lambda: iter([block]))
    pieces = list(Encoding(delivery, JsonFormat()).pieces(block))
    assert len(pieces) == 3
    assert b"".join(pieces) == JsonFormat().batch(block, "orders").to_pybytes()
