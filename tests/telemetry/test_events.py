"""Named events, as a person reads them."""

from __future__ import annotations

import io
import logging

import orjson
import pytest

from tidemill.telemetry import events


def test_quotes_inside_a_field_are_told_from_those_around_it() -> None:
    lines = io.StringIO()
    events.configure(stream=lines)
    try:
        events.warn("capture.failed", error='publication "x" is gone', sink="lake")
    finally:
        events.configure()
    assert r'error="publication \"x\" is gone" sink=lake' in lines.getvalue()


def test_what_an_adopted_library_logs_is_an_event_among_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = io.StringIO()
    monkeypatch.setenv("TIDEMILL_LOG", "json")
    events.configure(stream=lines)
    library = logging.getLogger("some_library")
    try:
        events.adopt("some_library")
        events.warn("server.open")
        try:
            raise ValueError("the pond is dry")
        except ValueError:
            logging.getLogger("some_library.part").exception("it failed")
    finally:
        monkeypatch.undo()
        events.configure()
        library.handlers[:], library.propagate = [], True
    ours, theirs = (orjson.loads(line) for line in lines.getvalue().splitlines())
    assert (ours["event"], "logger" in ours) == ("server.open", False)
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("it failed", "ERROR", "some_library.part")
    assert theirs["traceback"].endswith("ValueError: the pond is dry")
