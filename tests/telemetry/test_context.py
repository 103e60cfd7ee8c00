"""What is bound stands in every event."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator

import orjson
import pytest

from tidemill.telemetry import context, events
from tidemill.telemetry.context import bind, bind_process, current


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The log as machines read it."""
    monkeypatch.setenv("TIDEMILL_LOG", "json")
    monkeypatch.setattr(context, "_PROCESS", {})
    kept = events.LOGGER.handlers[:], events.LOGGER.level, events.LOGGER.propagate
    stream = io.StringIO()
    events.configure(stream=stream)
    yield stream
    events.LOGGER.handlers[:], events.LOGGER.level, events.LOGGER.propagate = kept


def said(lines: io.StringIO) -> list[dict[str, object]]:
    found = [orjson.loads(line) for line in lines.getvalue().splitlines()]
    return [{name: value for name, value in one.items() if name not in ("time", "level")} for one in found]


def test_an_event_has_the_context_of_its_thread_and_its_own_fields_win(lines: io.StringIO) -> None:
    with bind(pipeline="orders", stage="stream"):
        with bind(sink="lake"):
            events.emit("a.b", offset=3)
            events.emit("a.c", sink="other")
        events.emit("a.d")
    events.emit("a.e")
    assert said(lines) == [
        {"event": "a.b", "pipeline": "orders", "stage": "stream", "sink": "lake", "offset": 3},
        {"event": "a.c", "pipeline": "orders", "stage": "stream", "sink": "other"},
        {"event": "a.d", "pipeline": "orders", "stage": "stream"},
        {"event": "a.e"},
    ]


def test_what_a_process_binds_holds_for_all_its_threads(lines: io.StringIO) -> None:
    bind_process(pipeline="orders", stage="capture")
    with bind(sink="lake"):
        thread = threading.Thread(target=lambda: events.emit("a.b"))
        thread.start()
        thread.join()
        assert current() == {"pipeline": "orders", "stage": "capture", "sink": "lake"}
    assert said(lines) == [{"event": "a.b", "pipeline": "orders", "stage": "capture"}]


def test_an_error_ends_what_was_bound() -> None:
    with pytest.raises(ZeroDivisionError), bind(pipeline="orders"):
        raise ZeroDivisionError
    assert "pipeline" not in current()


def test_a_line_of_a_modules_own_logger_has_the_context_too(lines: io.StringIO) -> None:
    with bind(pipeline="orders"):
        logging.getLogger("tidemill.sinks.some").warning("%d broken", 3)
    assert said(lines) == [{"event": "3 broken", "pipeline": "orders"}]
