"""The driver dies by `kill -9` at named points; what the next one does with the batch under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.blocks import make_change
from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.log import LogConfig, LogWriter
from tidemill.stream.admission import ROWS_PER_LANE

ROWS = ROWS_PER_LANE * 2


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Three transactions that are a batch each."""
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    for number in range(3):
        log.append(make_change(ROWS, number=number + 1))
    log.close()
    return tmp_path


def test_killed_before_the_checkpoint_the_same_batch_comes_again_with_the_same_lanes(pipeline: Path) -> None:
    assert drive(pipeline, lanes=2, crash="stream.delivered:2") == -signal.SIGKILL
    assert checkpoint(pipeline) == ROWS
    assert drive(pipeline, lanes=5, max_events=ROWS * 10) == 0
    batches = [(note["start"], note["end"], note["lane"], note["lanes"]) for note in notes(pipeline)]
    under_way = [(ROWS, ROWS * 2, lane, 2) for lane in range(2)]
    assert Counter(batches) == Counter(
        [(0, ROWS, 0, 2), (0, ROWS, 1, 2), *under_way, *under_way]
        + [(ROWS * 2, ROWS * 3, lane, min(5, ROWS // ROWS_PER_LANE)) for lane in range(min(5, ROWS // ROWS_PER_LANE))]
    )
    twice = [note["rows"] for note in notes(pipeline) if (note["start"], note["lane"]) == (ROWS, 0)]
    assert twice[0] == twice[1]


def test_killed_after_the_checkpoint_the_batch_is_not_delivered_again(pipeline: Path) -> None:
    assert drive(pipeline, lanes=2, crash="stream.checkpointed:2") == -signal.SIGKILL
    assert checkpoint(pipeline) == ROWS * 2
    assert drive(pipeline, lanes=2) == 0
    assert Counter(note["start"] for note in notes(pipeline)) == {0: 2, ROWS: 2, ROWS * 2: 2}


def test_killed_in_the_first_batch_it_begins_where_it_began(pipeline: Path) -> None:
    assert drive(pipeline, lanes=1, crash="stream.checkpointed:1") == -signal.SIGKILL
    assert drive(pipeline, lanes=1) == 0
    assert [(note["start"], note["end"]) for note in notes(pipeline)] == [(ROWS * i, ROWS * (i + 1)) for i in range(3)]


def drive(directory: Path, *, lanes: int, max_events: int = ROWS, crash: str = "") -> int:
    command = [sys.executable, "-m", "tests.stream.driver", str(directory), str(lanes), str(max_events)]
    with (directory / "driver.log").open("ab") as log:
        done = subprocess.run(
            command, env=os.environ | {"TIDEMILL_CRASH_AT": crash}, stdout=log, stderr=log, timeout=240, check=False
        )
    assert done.returncode in (0, -signal.SIGKILL), (directory / "driver.log").read_text()[-3000:]
    return done.returncode


def checkpoint(directory: Path) -> int:
    kept = FileCheckpoints(FileConfig(), state_dir=directory).load("mill")
    return kept.offset if kept else 0


def notes(directory: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (directory / "s.jsonl").read_bytes().splitlines()]
