"""What `bench latency` makes of traces."""

from __future__ import annotations

from tidemill.lab.bench.latency.steps import STEPS, steps_of
from tidemill.lab.servers.collector import ReceivedSpan


def _span(trace: str, name: str, start: int, end: int, *, parent: str = "", **attributes: float) -> ReceivedSpan:
    """Milliseconds."""
    found = {f"tidemill.{key}": value for key, value in attributes.items()}
    return ReceivedSpan("tidemill", name, trace, name, parent, start * 10**6, end * 10**6, found, (), "")


def _way(trace: str) -> list[ReceivedSpan]:
    return [
        _span(trace, "change", 0, 9),
        _span(trace, "server.send", 0, 1),
        _span(trace, "capture.read", 0, 3),
        _span(trace, "capture.decode", 3, 4),
        _span(trace, "capture.append", 5, 9),
        _span(trace, "stream.batch", 8, 60),
        _span(trace, "stream.pin", 8, 13),
        _span(trace, "stream.deliver", 14, 45),
        _span(trace, "lane.deliver", 16, 44),
        _span(trace, "sink.write", 17, 43, parent="lane.deliver", encode_seconds=0.006, write_seconds=0.02),
        _span(trace, "stream.checkpoint", 47, 60),
    ]


def test_steps_have_no_gap_between_commit_and_checkpoint() -> None:
    steps = steps_of(_way("a"))
    assert {step: waits[0] for step, waits in steps.items()} == {
        "sent": 1, "read": 2, "decoded": 1, "logged": 4, "noticed": 0, "pinned": 6, "dispatched": 2, "loaded": 2,
        "encoded": 6, "answered": 20, "returned": 3, "saved": 13,
    }  # fmt: skip
    assert sum(waits[0] for waits in steps.values()) == 60


def test_a_trace_that_did_not_come_whole_counts_in_no_step() -> None:
    missing = [span for span in _way("b") if span.name != "capture.append"]
    assert steps_of([*missing, *_way("a")]) == steps_of(_way("a"))
    assert steps_of(missing) == {step: [] for step in STEPS}
