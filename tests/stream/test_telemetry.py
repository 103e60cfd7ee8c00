"""Events of Spark workers in the driver's log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.stream.conftest import Mill
from tests.support.blocks import make_change
from tidemill.model.barrier import Barrier
from tidemill.telemetry.relay import MAX_EVENTS


def said(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.getMessage() == name]


def test_what_happens_in_a_worker_stands_in_the_drivers_log(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    for sink in "ab":
        (mill.directory / f"{sink}.say").write_text("2")
    mill.log.append(make_change(5))
    with caplog.at_level(logging.INFO, "tidemill"):
        mill.run(mill.sink("a"), mill.sink("b"))
    arrived = sorted(said(caplog, "scribe.dipped"), key=lambda fields: (fields["sink"], fields["number"]))
    assert arrived == [
        {"pipeline": "mill", "stage": "deliver", "sink": sink, "lane": 0, "number": number}
        for sink in "ab"
        for number in range(2)
    ]
    (started,) = said(caplog, "stream.started")
    assert (started["pipeline"], started["stage"]) == ("mill", "stream")


def test_events_of_a_failed_delivery_come_home_and_a_flood_is_cut(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    (mill.directory / "s.say").write_text(str(MAX_EVENTS + 50))
    mill.poison("s", 3)
    mill.log.append(make_change(5))
    loop = mill.loop()
    with caplog.at_level(logging.INFO, "tidemill"):
        loop.start()
        with pytest.raises(Exception, match="unreadable"):
            loop.await_end(60)
    assert [fields["number"] for fields in said(caplog, "scribe.dipped")] == list(range(MAX_EVENTS))
    assert said(caplog, "telemetry.events_dropped") == [{"pipeline": "mill", "stage": "deliver", "events": 50}]


def test_an_operator_sees_which_barrier_made_a_batch_one_of_its_own(
    mill: Mill, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = [Barrier.NONE, Barrier.SCHEMA_CHANGE | Barrier.TRUNCATE, Barrier.KEY_CHANGE, Barrier.KEY_CHANGE]
    for number, kind in enumerate(kinds, 1):
        mill.log.append(make_change(5, number=number, barrier=kind))
    with caplog.at_level(logging.INFO, "tidemill"):
        mill.run()
    assert [(report.start, report.end, report.barrier) for report in mill.reports] == [
        (0, 5, Barrier.NONE),
        (5, 10, Barrier.SCHEMA_CHANGE | Barrier.TRUNCATE),
        (10, 20, Barrier.KEY_CHANGE),
    ]
    passed = [(fields["offset"], fields["kinds"]) for fields in said(caplog, "stream.barrier_passed")]
    assert passed == [(5, "schema_change,truncate"), (10, "key_change")]
