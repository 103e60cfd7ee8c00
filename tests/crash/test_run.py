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

from tests.crash.actors import RunActor, delivered_offset, on_stage, uncounted_changes, wait_for, write_pipeline
from tests.crash.cycles import cycles, seeds, victims
from tests.crash.delivered import from_files
from tests.crash.harness import Ending, SourceHarness
from tests.crash.replay import Replay
from tests.crash.workload import Load
from tests.support.seed import WHOLE, run_seed

FAILPOINTS = (
    "worker.writing:2", "worker.written:2", "stream.delivered:2", "stream.checkpointed:2", "capture.appended:4",
)  # fmt: skip
# Between the steps that only standing lanes have.
STANDING = ("stream.pinned:2", "worker.delivered:2")
MODES = ("micro_batch", "real_time")
# Around the processors. They take every event apart and leave it as it was, so that the source is still the judge.
PROCESSING = ("worker.processing:2", "worker.processed:2")
SCRIPT = "function process(ev) { if (ev.after) ev.after = {...ev.after}; return [ev]; }"
CHAIN = (
    {"type": "filter", "id": "all", "where": {"field": "op", "in": ["insert", "update", "delete", "read"]}},
    {"type": "javascript", "id": "copy", "inline": SCRIPT, "limits": {"cpu_ms": 20_000, "timeout_ms": 60_000}},
    {"type": "sql", "id": "star", "query": "SELECT * FROM events"},
)
NAMED = [(mode, chain) for chain in ((), CHAIN) for mode in MODES]
SHARES = 2
# Seeds that follow each other take turns over the modes of the trigger.
# The stream knows nothing of sources: a few kills show that it also holds for DDL of the binlog.
AT_RANDOM = [("postgres", seed, SHARES) for seed in seeds(SHARES if WHOLE else 1, first=1)]
AT_RANDOM += [(kind, seed, 10) for kind, seed in zip(("mysql", "mariadb"), seeds(2, first=64), strict=True)]
_PAUSE = 0.08
_START_SECONDS, _CATCH_UP_SECONDS = 240, 300


class Stage:
    """A source under load, and `tidemill run` delivering it to files."""

    def __init__(self, source: SourceHarness, directory: Path, crash_at: str = "", **spec: Any) -> None:
        self.source = source
        self.files = directory / "files"
        sinks = [{"type": "files", "config": {"id": "files", "path": str(self.files)}}]
        document = write_pipeline(directory, source.source("proof"), sinks, **spec)
        self.run = RunActor(directory, document, crash_at)

    def wait_for_progress(self) -> None:
        before = delivered_offset(self.run.pipeline)

        def progress() -> bool:
            self.run.keep_running()
            return delivered_offset(self.run.pipeline) > before

        wait_for(
            progress, _START_SECONDS,
            lambda: f"nothing is delivered any more:\n{self.run.testimony()}",
        )  # fmt: skip

    def wait_for_failpoints(self) -> None:
        """Until somebody has ended at each of them."""

        def met() -> bool:
            self.run.keep_running()
            return self.run.crashed_at_failpoint

        wait_for(
            met, 2 * _START_SECONDS, lambda: f"not all of {self.run.crash_at} were passed:\n{self.run.testimony()}"
        )

    def kill(self, victim: str, dice: Random) -> None:
        """Every cycle kills: a victim that is just being started again is waited for."""

        def killed() -> bool:
            self.run.keep_running()
            return self.run.kill(victim, dice)

        wait_for(killed, _START_SECONDS, lambda: f"no {victim} to kill:\n{self.run.testimony()}")

    def finish(self) -> int:
        """The load is over: everything must arrive, be what the database says it was, and be there once."""
        expected = self.source.tally().total()

        def caught_up() -> bool:
            self.run.keep_running()
            beside = uncounted_changes(self.run.pipeline, self.source)
            return delivered_offset(self.run.pipeline) >= expected + beside

        wait_for(
            caught_up, _CATCH_UP_SECONDS,
            lambda: f"{delivered_offset(self.run.pipeline)} of {expected} delivered:\n{self.run.output[-5000:]}",
        )  # fmt: skip
        assert self.run.stop() == 0, self.run.output[-5000:]
        replay = Replay(self.source.keys, counts_ddl=self.source.COUNTS_DDL)
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


@pytest.mark.parametrize(
    ("mode", "chain"), NAMED if WHOLE else NAMED[run_seed() % 3 :][:1],  # a sample: the chain in micro-batches
    ids=lambda value: value if isinstance(value, str) else "processors" if value else "no processors",
)  # fmt: skip
def test_processes_killed_at_every_named_point_in_turn_cost_no_event_and_double_none(
    source: SourceHarness, evidence: Path, mode: str, chain: tuple[dict[str, Any], ...]
) -> None:
    points = (*FAILPOINTS, *(STANDING if mode == "real_time" else ()), *(PROCESSING if chain else ()))
    # All at once, in the order in which they are come to: only who ends there takes the time to start again.
    with staged(source, evidence, ",".join(points), trigger={"mode": mode}, processors=list(chain)) as stage:
        stage.run.begin(source)
        with Load(source, seed=3, pause=_PAUSE, rows_per_second=800).running():
            stage.wait_for_failpoints()
            time.sleep(0.5)
        stage.run.crash_at = ""
        stage.finish()


@pytest.mark.parametrize(("source", "seed", "share"), AT_RANDOM, indirect=["source"])
def test_processes_killed_at_random_times_cost_no_event_and_double_none(
    source: SourceHarness, evidence: Path, seed: int, share: int, account: Callable[..., None]
) -> None:
    dice = Random(seed)
    with staged(source, evidence, trigger={"mode": MODES[seed % 2]}) as stage:
        stage.run.begin(source)
        with Load(source, seed, pause=_PAUSE, rows_per_second=800).running() as load:
            for _, victim in zip(cycles(share), victims(dice), strict=False):
                stage.run.keep_running()
                if dice.random() < 0.7:
                    stage.wait_for_progress()  # else it is killed again while it still starts
                time.sleep(dice.uniform(0, 2))
                stage.kill(victim, dice)
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
