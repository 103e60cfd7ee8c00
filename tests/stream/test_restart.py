"""The driver dies by `kill -9` at named points; what the next one, in this process, does with the batch under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from tests.stream.conftest import Mill
from tests.support.blocks import make_change
from tidemill.config.spec import Batch
from tidemill.stream.batch.admission import ROWS_PER_LANE

ROWS = ROWS_PER_LANE * 2


@pytest.fixture
def three(mill: Mill) -> Mill:
    """Three transactions that are a batch each."""
    for number in range(3):
        mill.log.append(make_change(ROWS, number=number + 1))
    return mill


def test_killed_before_the_checkpoint_the_same_batch_comes_again_with_the_same_lanes(three: Mill) -> None:
    drive(three, lanes=2, crash="stream.delivered:2")
    assert checkpoint(three) == ROWS
    three.run(lanes=5, batch=Batch(max_events=ROWS * 10))
    batches = [(note["start"], note["end"], note["lane"], note["lanes"]) for note in three.notes()]
    under_way = [(ROWS, ROWS * 2, lane, 2) for lane in range(2)]
    assert Counter(batches) == Counter(
        [(0, ROWS, 0, 2), (0, ROWS, 1, 2), *under_way, *under_way]
        + [(ROWS * 2, ROWS * 3, lane, min(5, ROWS // ROWS_PER_LANE)) for lane in range(min(5, ROWS // ROWS_PER_LANE))]
    )
    twice = [note["rows"] for note in three.notes() if (note["start"], note["lane"]) == (ROWS, 0)]
    assert twice[0] == twice[1]


def test_killed_after_the_checkpoint_the_batch_is_not_delivered_again(three: Mill) -> None:
    drive(three, lanes=2, crash="stream.checkpointed:2")
    assert checkpoint(three) == ROWS * 2
    three.run(lanes=2, batch=Batch(max_events=ROWS))
    assert Counter(note["start"] for note in three.notes()) == {0: 2, ROWS: 2, ROWS * 2: 2}


def test_killed_in_the_first_batch_it_begins_where_it_began(three: Mill) -> None:
    drive(three, lanes=1, crash="stream.checkpointed:1")
    three.run(lanes=1, batch=Batch(max_events=ROWS))
    assert [(note["start"], note["end"]) for note in three.notes()] == [(ROWS * i, ROWS * (i + 1)) for i in range(3)]


def drive(mill: Mill, *, lanes: int, crash: str, more: tuple[str, ...] = (), dies: bool = True) -> int:
    """Delivers in a process of its own until that is killed; without `dies` another one is, a worker."""
    command = [sys.executable, "-m", "tests.stream.driver", str(mill.directory), str(lanes), str(ROWS), *more]
    output, crashed = mill.directory / "driver.log", mill.directory / f"crashed-{crash.partition(':')[0]}"
    crashed.unlink(missing_ok=True)
    with output.open("ab") as log:
        environment = {"TIDEMILL_CRASH_AT": crash, "TIDEMILL_CRASH_ONCE": str(mill.directory / "crashed")}
        done = subprocess.run(command, env=os.environ | environment, stdout=log, stderr=log, timeout=480, check=False)
    assert done.returncode == (-signal.SIGKILL if dies else 0), output.read_text()[-3000:]
    assert crashed.exists()
    return done.returncode


def checkpoint(mill: Mill) -> int:
    kept = mill.store.load("mill")
    return kept.offset if kept else 0
