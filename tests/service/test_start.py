"""A start: one capture process for a pipeline, and what `run --profile-start` says of the stages."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import register
from tidemill import config
from tidemill.capture.status import StatusFile
from tidemill.disk.private import make_directory
from tidemill.service.run.capture_process import CaptureProcess
from tidemill.service.run.start_profile import StartProfile, birth_of
from tidemill.telemetry import events
from tidemill.telemetry.context import bind


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> config.Pipeline:
    register(monkeypatch)
    document = tmp_path / "p.yaml"
    document.write_text(PIPELINE.replace("spec:", f"spec:\n  state_dir: {tmp_path / 'state'}", 1))
    return config.load(document)[0]


class ProcessThatIdles:
    """Stands in for capture: it takes its task and lives on."""

    started = 0

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        ProcessThatIdles.started += 1
        self.pid = os.getpid()
        self.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), "wb")

    def poll(self) -> int | None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        return 0


def test_a_capture_that_a_look_has_started_is_not_started_again(
    pipeline: config.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessThatIdles, "started", 0)
    monkeypatch.setattr("tidemill.service.run.capture_process.subprocess.Popen", ProcessThatIdles)
    process = CaptureProcess(pipeline)
    process.watch()
    process.start()
    process.watch()
    assert ProcessThatIdles.started == 1
    process.stop()
    process.start()
    assert ProcessThatIdles.started == 2
    process.stop()


def test_the_stages_of_a_start_follow_each_other_to_the_first_batch(pipeline: config.Pipeline) -> None:
    level = events.LOGGER.level
    profile = StartProfile()
    events.LOGGER.setLevel("INFO")
    profile.install()
    try:
        profile.note("imports")
        profile.note("documents")
        events.emit("stream.spark_started", java_seconds=0.0, session_seconds=0.0)
        make_directory(pipeline.state_path)
        StatusFile(pipeline.state_path).streaming("0/1", resumed=False, notices=())  # type: ignore[arg-type]
        with bind(pipeline=pipeline.name):
            events.emit("stream.started", offset=0, lanes=1)
        events.emit("stream.workers_started", seconds=0.0)
        assert not profile.is_complete([pipeline.name])
        profile.note_batch(pipeline.name)
    finally:
        events.LOGGER.removeFilter(profile)
        events.LOGGER.setLevel(level)
    assert profile.is_complete([pipeline.name])
    stages = profile.stages([pipeline])
    assert {(each.part.partition(" ")[0], each.stage) for each in stages} == {
        ("driver", "imports"), ("driver", "documents"), ("driver", "other imports"), ("driver", "Java"),
        ("driver", "Spark session"), ("workers", "first workers"), ("capture", "imports"), ("capture", "set-up, login"),
        ("stream", "first batch"),
    }  # fmt: skip
    assert [each.begin for each in stages] == sorted(each.begin for each in stages)
    driver = [each for each in stages if each.part == "driver"]
    assert driver[0].begin == 0.0
    for one, following in itertools.pairwise(driver):
        assert following.begin == pytest.approx(one.begin + one.seconds, abs=0.03)


def test_a_process_knows_when_it_was_born_and_nothing_of_one_that_is_not_there() -> None:
    born = birth_of(os.getpid())
    assert born is not None
    assert born < time.time()
    assert born == pytest.approx(birth_of(os.getpid()), abs=1.0)
    assert birth_of(2**30) is None
