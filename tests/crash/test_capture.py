"""Loop one alone: whatever happens to capture or the database, the log holds every committed change once, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash.actors import CaptureActor, on_stage, wait_for, write_pipeline
from tests.crash.cycles import cycles, seeds
from tests.crash.delivered import LogDelivered
from tests.crash.harness import Ending, SourceHarness
from tests.crash.replay import Replay
from tests.crash.workload import Load
from tests.support.seed import WHOLE, sample
from tidemill.log import acknowledge

FAILPOINTS = (
    "capture.before_append:3", "capture.appended:1", "capture.appended:8", "capture.spilled:4",
    "capture.spill_committed:1",
)  # fmt: skip
ENDINGS: tuple[Ending, ...] = ("fast", "immediate", "kill")
# PostgreSQL and SQLite meet every point; MySQL and MariaDB, whose decoder is one, share them.
AT_FAILPOINTS = [(kind, point) for kind in ("postgres", "sqlite") for point in FAILPOINTS] + [
    (("mysql", "mariadb")[i % 2], p) for i, p in enumerate(FAILPOINTS)
]
AT_ENDINGS = [("postgres", ending) for ending in ENDINGS] + [("mysql", "kill"), ("mariadb", "fast")]
# Source, seed, and which part of the cycles it has; a sample has twenty in all.
AT_RANDOM = [("postgres", seed, 1 if WHOLE else 2) for seed in seeds(2 if WHOLE else 1, first=101)]
AT_RANDOM += [
    (kind, seed, 2 if WHOLE else 4)
    for kind, seed in zip(("mysql", "mariadb-file", "sqlite", "turso"), seeds(4, first=201), strict=True)
]
ENOUGH = 100
KEEP = {"retention_seconds": 3600.0, "segment_bytes": 2 << 20}


class Stage:
    """A source under load, a capture process, and a consumer of the log that acknowledges now and then."""

    def __init__(self, source: SourceHarness, directory: Path, crash_at: str = "", **spec: Any) -> None:
        self.source = source
        sinks = [{"type": "blackhole", "config": {"id": "none"}}]
        document = write_pipeline(directory, source.source("proof"), sinks, **{"log": KEEP, **spec})
        self.capture = CaptureActor(directory, document, crash_at)
        self.replay = Replay(source.keys, counts_ddl=source.COUNTS_DDL)
        self._log = self.capture.pipeline.log_uri
        self._delivered: LogDelivered | None = None

    def begin(self) -> None:
        self.capture.start()
        wait_for(self.source.ready, 180, lambda: f"nothing is captured:\n{self.capture.output[-3000:]}")

    def consume(self, *, acknowledging: bool = True) -> None:
        if self._delivered is None:
            if not any(Path(self._log).glob("*.idx")):
                return
            self._delivered = LogDelivered(self._log, "proof")
        self.replay.take(self._delivered.new())
        if acknowledging and self._delivered.tail.offset:
            acknowledge(self._log, self._delivered.tail)

    def enough(self) -> None:
        """While the load goes on: until what has arrived can prove something."""

        def arrived() -> bool:
            self.consume()
            return self.replay.events > ENOUGH

        wait_for(arrived, 180, lambda: f"{self.replay.events} events arrived:\n{self.capture.output[-3000:]}")

    def finish(self) -> None:
        """The load is over: everything must arrive, and be what the database says it was."""
        expected = self.source.tally().total()
        deadline = time.monotonic() + 180
        while self.replay.events < expected and time.monotonic() < deadline:
            assert self.capture.alive, self.capture.output[-3000:]
            self.consume()
            time.sleep(0.05)
        found = self.replay.compare(self.source)
        assert not found, "\n".join(found[:20])
        assert self.replay.duplicates == 0
        assert self.replay.events > ENOUGH, "too little happened to prove anything"


@contextmanager
def staged(source: SourceHarness, directory: Path, crash_at: str = "", **spec: Any) -> Iterator[Stage]:
    stage = Stage(source, directory, crash_at, **spec)
    with on_stage(stage.capture):
        yield stage


@pytest.mark.parametrize(("source", "point"), sample(AT_FAILPOINTS), indirect=["source"])
def test_a_capture_killed_at_a_named_point_loses_nothing_and_repeats_nothing(
    source: SourceHarness, evidence: Path, point: str
) -> None:
    with staged(source, evidence, point) as stage:
        stage.begin()
        with Load(source, seed=5, pause=0.03, moves=_often(source, source.SPILLED)).running():
            stage.capture.wait_for_crash()
            stage.capture.start()
            for _ in range(10):
                time.sleep(0.1)
                stage.consume()
            stage.enough()
        stage.finish()


@pytest.mark.parametrize("source", ["postgres"], indirect=True)
def test_a_capture_killed_between_noting_a_position_and_confirming_it_goes_on(
    source: SourceHarness, evidence: Path
) -> None:
    """Invariant 2: the slot is behind what the state store says, which must not look like somebody else's doing."""
    with staged(source, evidence, "capture.confirmed:3") as stage:
        stage.begin()
        with Load(source, seed=5, pause=0.03).running():

            def crashed() -> bool:
                stage.consume()
                return stage.capture.crashed_at_failpoint

            wait_for(crashed, 180, lambda: f"nothing was confirmed:\n{stage.capture.output[-3000:]}")
            stage.capture.wait_for_crash()
            stage.capture.start()
            stage.enough()
        stage.finish()


@pytest.mark.parametrize(("source", "seed", "share"), AT_RANDOM, indirect=["source"])
def test_a_capture_killed_at_random_times_loses_nothing_and_repeats_nothing(
    source: SourceHarness, evidence: Path, seed: int, share: int, account: Callable[..., None]
) -> None:
    dice = Random(seed)
    with staged(source, evidence) as stage:
        stage.begin()
        with Load(source, seed).running():
            for _ in cycles(share):
                time.sleep(dice.uniform(0.05, 1.5))
                stage.consume(acknowledging=dice.random() < 0.7)
                stage.capture.kill()
                stage.capture.start()
            stage.enough()
        stage.finish()
        account(kills=dict(stage.capture.kills), events=stage.replay.events, duplicates=stage.replay.duplicates)


@pytest.mark.parametrize(("source", "ending"), sample(AT_ENDINGS), indirect=["source"])
def test_a_database_that_restarts_under_load_loses_nothing_and_repeats_nothing(
    source: SourceHarness, evidence: Path, ending: Ending
) -> None:
    dice = Random(ending)
    with staged(source, evidence) as stage:
        stage.begin()
        with Load(source, seed=7).running():
            for _ in range(3):
                time.sleep(dice.uniform(0.5, 2))
                stage.consume()
                source.restart(ending)
            stage.enough()
        stage.finish()


def _often(source: SourceHarness, kind: str) -> dict[str, float]:
    return {**source.MOVES, kind: 20.0}
