"""A worker's events on their way home: bounded, and the same when they arrive."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import orjson
import pytest

from tidemill.telemetry import events
from tidemill.telemetry.context import bind
from tidemill.telemetry.relay import EventBuffer, replay


@pytest.fixture(autouse=True)
def _logger() -> Iterator[None]:
    """As it was, after a test that plays the worker."""
    kept = events.LOGGER.handlers[:], events.LOGGER.level, events.LOGGER.propagate
    yield
    events.LOGGER.handlers[:], events.LOGGER.level, events.LOGGER.propagate = kept


def buffer(**limits: int) -> EventBuffer:
    made = EventBuffer(**limits)
    made.install()
    return made


class Arrived(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        events.LOGGER.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_an_event_arrives_with_its_level_time_fields_and_context() -> None:
    worker = buffer()
    with bind(pipeline="orders", stage="deliver", sink="lake"):
        events.warn("sink.late", seconds=0.5, table="a", rows=2**70, gone=None)
    logging.getLogger("tidemill.sinks.lake").info("100%% of %s", "it")
    packed = worker.take()
    home = Arrived()
    with bind(pipeline="orders", stage="stream"):
        replay(packed)
    one, two = home.records
    assert (one.getMessage(), one.levelname) == ("sink.late", "WARNING")
    assert events.fields_of(one) == {
        "pipeline": "orders", "stage": "deliver", "sink": "lake", "seconds": 0.5, "table": "a", "rows": str(2**70),
        "gone": None,
    }  # fmt: skip
    assert one.created == orjson.loads(packed)["events"][0]["time"]
    assert (two.getMessage(), two.levelname) == ("100% of it", "INFO")


def test_what_was_taken_is_gone_and_nothing_is_nothing() -> None:
    worker = buffer()
    assert worker.take() == b""
    events.emit("a.b")
    assert worker.take()
    assert worker.take() == b""


def test_more_events_than_fit_are_counted() -> None:
    worker = buffer(max_events=3)
    for number in range(10):
        events.emit("a.b", number=number)
    packed = worker.take()
    home = Arrived()
    replay(packed)
    *kept, last = [(record.getMessage(), events.fields_of(record)) for record in home.records]
    assert kept == [("a.b", {"number": number}) for number in range(3)]
    assert last == ("telemetry.events_dropped", {"stage": "deliver", "events": 7})


def test_bytes_are_bounded_whatever_an_event_says() -> None:
    worker = buffer(max_bytes=20_000)
    for _ in range(100):
        events.emit("a.b", text="\udc80ä" * 100_000)
    packed = worker.take()
    assert len(packed) < 21_000
    assert 0 < orjson.loads(packed)["dropped"] < 100
