"""A lane's share through the processors: what a worker says of it, and when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from tests.support.blocks import make_block
from tidemill.stream.lane.chain import Chain
from tidemill.stream.lane.processing import ProcessedShare, process_share
from tidemill.stream.lane.spool import Spool
from tidemill.telemetry import events

SOURCE = """
def process(event):
    if event["after"]["id"] == 1:
        raise ValueError
    event["after"]["more"] = 1
    return event
"""


def test_events_that_are_skipped_are_reported_once_though_the_share_is_processed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.LOGGER, "propagate", True)
    (tmp_path / "mine.py").write_text(SOURCE)
    specs: list[tuple[str, dict[str, Any]]] = [
        ("route", {"id": "notes", "topic": "${after.note}", "on_error": "skip"}),  # rows 0 and 3 have none
        ("python", {"id": "py", "file": str(tmp_path / "mine.py"), "style": "event", "on_error": "dead_letter"}),
    ]
    chain = Chain(specs, "shop")
    tools: Any = SimpleNamespace(chain=lambda specs, source: chain)
    delivery: Any = [make_block(5)]

    def process(known: Any, stored: set[int]) -> ProcessedShare:
        plan: Any = SimpleNamespace(processors=specs, source="shop", known=known)
        with Spool() as spool:
            return process_share(tools, plan, delivery, spool, stored)

    learned = process({}, set())
    assert learned.learned, "a column"
    known = orjson.loads(learned.learned)
    failed = process(known, set())
    assert not failed.learned
    assert list(failed.failures) == [1]
    final = process(known, {1})
    assert list(final.failures) == [1]
    said = [events.fields_of(r) for r in caplog.records if r.getMessage() == "processor.events_skipped"]
    assert [(each["processor"], each["events"]) for each in said] == [("notes", 2)]
