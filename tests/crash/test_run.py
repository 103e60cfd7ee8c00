"""The whole pipeline: capture, driver and Spark's workers killed at named points and at random times.

Afterwards the delivered files, replayed, are the source's tables row by row, and no event is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash.actors import RunActor, delivered_offset, on_stage, wait_for, write_pipeline
from tests.crash.cycles import cycles, seeds, victims
from tests.crash.delivered import from_files
from tests.crash.harness import Ending, SourceHarness
from tests.crash.replay import Replay
from tests.crash.workload import Load
from tests.support.seed import WHOLE

FAILPOINTS = (
    "worker.writing:2", "worker.written:2", "stream.delivered:2", "stream.checkpointed:2", "capture.appended:4",
)  # fmt: skip
SHARES = 2
# The stream knows nothing of sources: a few kills show that it also holds for DDL of the binlog.
AT_RANDOM = [("postgres", seed, SHARES) for seed in seeds(SHARES if WHOLE else 1, first=1)]
AT_RANDOM += [(kind, seed, 10) for kind, seed in zip(("mysql", "mariadb"), seeds(2, first=64), strict=True)]
_PAUSE = 0.08
_START_SECONDS, _CATCH_UP_SECONDS = 120, 180


class Stage:
    """A source under load, and `tidemill run` delivering it to files."""

    def __init__(self, source: SourceHarness, directory: Path, crash_at: str = "", **spec: Any) -> None:
        self.source = source
        self.files = directory / "files"
        sinks = [{"type": "files", "config": {"id": "files", "path": str(self.files)}}]
        document = write_pipeline(directory, source.source("proof"), sinks, **spec)
        self.run = RunActor(directory, document, crash_at)

    def keep_running(self) -> None:
        """As a service manager would: a driver that was killed is started again. One that gave up is a failure."""
        if not self.run.alive:
            assert self.run.was_killed, self.run.output[-5000:]
            self.run.start()

    def wait_for_progress(self) -> None:
        before = delivered_offset(self.run.pipeline)

        def progress() -> bool:
            self.keep_running()
            return delivered_offset(self.run.pipeline) > before

        wait_for(
            progress, _START_SECONDS,
            lambda: f"nothing is delivered any more:\n{self.run.testimony()}",
        )  # fmt: skip

    def finish(self) -> int:
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
        return expected


@contextmanager
def staged(source: SourceHarness, directory: Path, crash_at: str = "", **spec: Any) -> Iterator[Stage]:
    stage = Stage(source, directory, crash_at, **spec)
    with on_stage(stage.run):
        yield stage


def test_processes_killed_at_every_named_point_in_turn_cost_no_event_and_double_none(
    source: SourceHarness, evidence: Path
) -> None:
    dice = Random(3)
    with staged(source, evidence, FAILPOINTS[0]) as stage:
        run = stage.run
        run.begin(source)
        with Load(source, seed=3, pause=_PAUSE, rows_per_second=800).running():
            for point in FAILPOINTS:
                if run.crash_at != point:
                    # The driver of the last point may have survived: it was a worker that ended.
                    run.kill("driver", dice)
                    run.crash_at = point
                    run.start()
                run.wait_for_failpoint(_START_SECONDS)
                time.sleep(0.5)
        run.crash_at = ""
        stage.finish()


@pytest.mark.parametrize(("source", "seed", "share"), AT_RANDOM, indirect=["source"])
def test_processes_killed_at_random_times_cost_no_event_and_double_none(
    source: SourceHarness, evidence: Path, seed: int, share: int, account: Callable[..., None]
) -> None:
    dice = Random(seed)
    with staged(source, evidence) as stage:
        stage.run.begin(source)
        with Load(source, seed, pause=_PAUSE, rows_per_second=800).running() as load:
            for _, victim in zip(cycles(share), victims(dice), strict=False):
                stage.keep_running()
                if dice.random() < 0.7:
                    stage.wait_for_progress()  # else it is killed again while it still starts
                time.sleep(dice.uniform(0, 2))
                # A victim that is just being started again is waited for: every cycle kills.
                wait_for(lambda: stage.run.kill(victim, dice), 60, f"no {victim} to kill")  # noqa: B023
        events = stage.finish()
        account(kills=dict(stage.run.kills), transactions=load.done.total(), events=events, duplicates=0)


def test_a_database_that_restarts_and_is_killed_under_load_costs_no_event_and_doubles_none(
    source: SourceHarness, evidence: Path
) -> None:
    with staged(source, evidence) as stage:
        stage.run.begin(source)
        endings: tuple[Ending, ...] = ("fast", "kill", "immediate")
        with Load(source, seed=11, pause=_PAUSE, rows_per_second=800).running():
            for ending in endings:
                time.sleep(2)
                source.restart(ending)
            time.sleep(1)
        stage.finish()
        assert stage.run.starts == 1, "the pipeline did not live through it"
