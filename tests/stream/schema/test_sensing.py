"""Schemas on their way home: seen by workers, merged in the driver, kept once whatever is replayed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.schema.sensing import material
from tests.stream.conftest import Mill
from tests.support.blocks import make_change, position
from tidemill.errors import StateError, StreamError
from tidemill.model.block import Block
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.schema.sensing import SensingOptions, Sensor, TableProfile
from tidemill.state import open_store
from tidemill.stream.schema.sensing import DriftOptions, SensingKeeper

ALL = SensingOptions(sample_rate=1, ranges=True)


def keeper(mill: Mill, options: SensingOptions = ALL) -> SensingKeeper:
    return SensingKeeper(mill.state.sensing, "mill", options, DriftOptions())


def profiles(directory: Path) -> dict[str, TableProfile]:
    store = open_store(str(directory / "state.sqlite"))
    try:
        return {table.name: TableProfile.from_dict(table.document) for table in store.sensing.tables("mill")}
    finally:
        store.close()


def documents(count: int, number: int) -> Committed:
    rows = [{"id": n, "doc": {"n": n}} for n in range(count)]
    made = material.block(material.table(), rows)
    return Committed((made,), count, ((count, Position(position(number))),))


def test_every_event_is_counted_once_over_lanes_and_sinks_and_runs(mill: Mill) -> None:
    for number in range(1, 4):
        mill.log.append(make_change(40, 10, number=number))
        mill.run(mill.sink("a"), mill.sink("b"), lanes=2, sensing=keeper(mill))
    mill.log.append(documents(30, 9))
    mill.run(mill.sink("a"), mill.sink("b"), lanes=2, sensing=keeper(mill))
    found = profiles(mill.directory)
    orders, events = found["public.orders"], found["public.events"]
    assert (orders.events, orders.sampled, orders.columns["id"].values) == (150, 150, 150)
    assert orders.columns["note"].nulls.count == sum(n % 3 == 0 for n in range(50)) * 3
    assert orders.columns["id"].range == (("0", "0"), ("49", "49"))
    assert events.columns["doc"].paths == {("", "object"): 30, ("/n", "integer"): 30}
    assert mill.state.sensing.offset("mill") == 180


def test_a_batch_that_is_delivered_again_is_not_counted_again(mill: Mill) -> None:
    mill.log.append(make_change(50))
    mill.run(sensing=keeper(mill))
    checkpoint = mill.store.load("mill")
    assert checkpoint is not None
    mill.store.save("mill", type(checkpoint)(10, checkpoint.position), expect=checkpoint.version, force=True)
    mill.log.append(make_change(20, number=2))
    mill.run(sensing=keeper(mill))
    assert sorted(set(mill.offsets())) == list(range(70))
    assert len(mill.offsets()) == 110
    assert profiles(mill.directory)["public.orders"].events == 70


def test_a_crash_between_sensing_and_the_checkpoint_counts_once(mill: Mill) -> None:
    class Dying(SensingKeeper):
        def take(self, end: int, packed: Any) -> None:
            super().take(end, packed)
            raise StreamError("the driver died here")

    mill.log.append(make_change(50))
    loop = mill.loop(sensing=Dying(mill.state.sensing, "mill", ALL, DriftOptions()))
    loop.start()
    with pytest.raises(StreamError, match="died here"):
        loop.await_end(60)
    loop.stop()
    assert loop.checkpoint.offset == 0
    mill.run(sensing=keeper(mill))
    assert sorted(set(mill.offsets())) == list(range(50))
    assert len(mill.offsets()) == 100, "delivered again"
    assert profiles(mill.directory)["public.orders"].events == 50


def test_a_lane_that_fails_and_is_sent_again_is_counted_once(mill: Mill) -> None:
    fault = mill.fail("s", 0)
    mill.log.append(make_change(50))
    loop = mill.loop(lanes=2, sensing=keeper(mill), on_retry=lambda errors: fault.unlink(missing_ok=True))
    loop.start()
    try:
        mill.wait(loop, lambda: loop.checkpoint.offset == 50)
    finally:
        loop.stop()
    assert profiles(mill.directory)["public.orders"].events == 50


def test_a_store_that_is_away_holds_up_nothing_and_gets_it_later(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = keeper(mill)
    block = material.block(material.table(), [{"id": 1}])
    kept.plan()
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "tidemill"):
        patched.setattr(mill.state.sensing, "save", _away)
        kept.take(1, [_sensed(block)])
        kept.take(2, [_sensed(block)])
    assert [record.getMessage() for record in caplog.records] == ["sensing.not_saved"]
    assert profiles(mill.directory) == {}
    kept.take(3, [_sensed(block)])
    assert profiles(mill.directory)["public.events"].events == 3


def test_a_sensor_that_fails_is_an_event_and_delivery_goes_on(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SensingKeeper):
        def plan(self) -> dict[str, Any]:
            return super().plan() | {"max_depth": "deep"}

    mill.log.append(documents(5, 1))
    with caplog.at_level(logging.WARNING, "tidemill"):
        mill.run(sensing=Broken(mill.state.sensing, "mill", ALL, DriftOptions()))
    assert len(mill.offsets()) == 5
    assert "sensing.failed" in [record.getMessage() for record in caplog.records]
    assert profiles(mill.directory) == {}


def test_results_that_cannot_be_merged_are_an_event(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    kept = keeper(mill)
    block = material.block(material.table(), [{"id": 1}])
    with caplog.at_level(logging.WARNING, "tidemill"):
        kept.take(1, [b"torn"])
    assert [record.getMessage() for record in caplog.records] == ["sensing.failed"]
    kept.take(2, [_sensed(block)])
    assert profiles(mill.directory)["public.events"].events == 1


def test_versions_count_structures_and_not_batches(mill: Mill) -> None:
    kept = keeper(mill)
    table = material.table()
    for end, document in enumerate([{"a": 1}, {"a": 2}, {"a": 2, "b": "x"}], 1):
        kept.take(end, [_sensed(material.block(table, [{"id": end, "doc": document}], first=end - 1))])
    (found,) = mill.state.sensing.tables("mill")
    assert found.version == 2
    assert [(each.version, each.offset) for each in mill.state.sensing.versions("mill", found.name)] == [(2, 3), (1, 1)]


def _sensed(block: Block) -> bytes:
    sensor = Sensor(ALL)
    sensor.observe(0, block)
    return sensor.take()


def _away(*given: Any) -> None:
    raise StateError("the store is away")
