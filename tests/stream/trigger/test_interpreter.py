"""How long threads of the driver keep the interpreter from feeders of standing lanes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from tidemill.stream.trigger.interpreter import FEEDER, share_interpreter


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_many_feeders_ask_for_the_interpreter_as_often_as_a_few() -> None:
    """Each thread that waits for it wakes up once in a switch interval: hundreds, every half millisecond, are all that
    a machine can do."""
    seen: dict[int, float] = {}
    ended = threading.Event()
    feeders = [threading.Thread(target=ended.wait, name=FEEDER) for _ in range(120)]
    for count, feeder in enumerate(feeders, start=1):
        feeder.start()
        share_interpreter()
        seen[count] = sys.getswitchinterval()
    ended.set()
    for feeder in feeders:
        feeder.join()
    assert seen[1] == pytest.approx(0.0005), "one has it soon"
    assert seen[4] == pytest.approx(0.002)
    assert seen[10] == pytest.approx(0.005), "as every program in Python"
    assert seen[100] == seen[120] == pytest.approx(0.05)
    share_interpreter()
    assert sys.getswitchinterval() == pytest.approx(0.0005)
