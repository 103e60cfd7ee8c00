"""The whole pipeline: capture, driver and Spark's workers killed at named points and at random times.

Afterwards the delivered files, replayed, are the source's tables row by row, and no event is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash.actors import RunActor, delivered_offset, on_stage, wait_for, write_pipeline
from tests.crash.cycles import cycles, seeds, victims
from tests.crash.delivered import from_files
from tests.crash.harness import Ending
from tests.crash.postgres import PostgresHarness
from tests.crash.replay import Replay
from tests.crash.workload import Load

POINTS = (
    "worker.writing:2", "worker.written:2", "stream.delivered:2", "stream.checkpointed:2", "capture.appended:4",
)  # fmt: skip
SHARES = 2
_PAUSE = 0.05
_START_SECONDS, _CATCH_UP_SECONDS = 120, 180


class Stage:
    """A source under load, and `tidemill run` delivering it to files."""

    def __init__(self, source: PostgresHarness, directory: Path, crash_at: str = "", **spec: Any) -> None:
        self.source = source
        self.files = directory / "files"
        sinks = [{"type": "files", "config": {"id": "files", "path": str(self.files)}}]
        document = write_pipeline(directory, source.source("proof"), sinks, **spec)
        self.run = RunActor(directory, document, crash_at)

    def begin(self) -> None:
        self.run.start()
        wait_for(self.source.ready, _START_SECONDS, lambda: f"no slot:\n{self.run.output[-3000:]}")
        wait_for(self._stream_started, _START_SECONDS, lambda: f"no stream:\n{self.run.output[-3000:]}")

    def _stream_started(self) -> bool:
        return "stream.started" in self.run.output

    def keep_running(self) -> None:
        """As a service manager would: a driver that is gone is started again."""
        if not self.run.alive:
            self.run.start()

    def finish(self) -> None:
        """The load is over: everything must arrive, be what the database says it was, and be there once."""
        expected = self.source.tally().total()

        def caught_up() -> bool:
            self.keep_running()
            return delivered_offset(self.run.pipeline) >= expected

        wait_for(
            caught_up, _CATCH_UP_SECONDS,
            lambda: f"{delivered_offset(self.run.pipeline)} of {expected} delivered:\n{self.run.output[-5000:]}",
        )  # fmt: skip
        assert self.run.stop() == 0, self.run.output[-5000:]
        replay = Replay(self.source.keys)
        replay.take(from_files(self.files))
        found = replay.compare(self.source)
        assert not found, "\n".join(found[:20])
        assert replay.duplicates == 0
        assert replay.events == expected > 100


@contextmanager
def staged(source: PostgresHarness, directory: Path, crash_at: str = "", **spec: Any) -> Iterator[Stage]:
    stage = Stage(source, directory, crash_at, **spec)
    with on_stage(stage.run):
        yield stage


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_a_named_point_costs_no_event_and_doubles_none(
    source: PostgresHarness, evidence: Path, point: str
) -> None:
    with staged(source, evidence, point) as stage:
        stage.begin()
        with Load(source, seed=3, pause=_PAUSE).running():
            wait_for(lambda: stage.run.crashed_at_point, _START_SECONDS, "the point was never passed")
            time.sleep(0.5)
            stage.keep_running()
            time.sleep(1)
        stage.finish()


@pytest.mark.parametrize("seed", seeds(SHARES, first=1))
def test_processes_killed_at_random_times_cost_no_event_and_double_none(
    source: PostgresHarness, evidence: Path, seed: int, record_property: Any
) -> None:
    dice = Random(seed)
    with staged(source, evidence) as stage:
        stage.begin()
        with Load(source, seed, pause=_PAUSE).running() as load:
            for _, victim in zip(cycles(SHARES), victims(dice), strict=False):
                time.sleep(dice.uniform(0.2, 3))
                stage.keep_running()
                # A victim that is just being started again is waited for: every cycle kills.
                wait_for(lambda: stage.run.kill(victim, dice), 60, f"no {victim} to kill")  # noqa: B023
        stage.finish()
        record_property("kills", dict(stage.run.kills))
        record_property("transactions", dict(load.done))


@pytest.mark.parametrize("ending", ["fast", "kill"])
def test_a_database_that_restarts_under_load_costs_no_event_and_doubles_none(
    source: PostgresHarness, evidence: Path, ending: Ending
) -> None:
    with staged(source, evidence) as stage:
        stage.begin()
        with Load(source, seed=11, pause=_PAUSE).running():
            for _ in range(2):
                time.sleep(2)
                source.restart(ending)
            time.sleep(1)
        assert stage.run.alive
        stage.finish()
        assert stage.run.starts == 1
