"""Lanes that grow over a backlog (ADR 67), killed while they do: the other tests here name a master, and nothing grows.

The master is left to Tidemill, and batches are small, so that a backlog is worth more lanes for a while.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from tests.crash.actors import wait_for
from tests.crash.cycles import seeds
from tests.crash.postgres import PostgresHarness
from tests.crash.test_run import Stage, staged
from tests.crash.workload import Load
from tests.support.seed import WHOLE

ROWS, AT_ONCE = 140_000, 400
"""A backlog is 100,000 events; a batch splits no transaction."""

SPEC: dict[str, Any] = {
    "trigger": {"mode": "real_time", "epoch_seconds": 20},
    "batch": {"max_events": 500},
    "spark": {"conf": {"spark.driver.memory": "512m"}},
}
VICTIMS = ("worker", "driver", "worker", "capture")


def pile_up(source: PostgresHarness) -> None:
    """Much faster than small batches deliver it; in its middle a column is added."""
    with psycopg.connect(source.dsn, autocommit=True) as db:
        for number in range(ROWS // AT_ONCE):
            db.execute(
                "INSERT INTO accounts (id, balance, note) SELECT nextval('ids'), n, 'piled up' "
                f"FROM generate_series(1, {AT_ONCE}) n"
            )
            if number == ROWS // AT_ONCE // 2:
                db.execute("ALTER TABLE accounts ADD COLUMN IF NOT EXISTS piled integer")


def wait_for_more_lanes(stage: Stage) -> None:
    """In the run that there is now."""

    def stand() -> bool:
        stage.run.keep_running()
        return bool(re.search(r"stream\.lanes_standing .*lanes=[2-9]", stage.run.output_of_this_start))

    wait_for(stand, 120, lambda: f"the lanes did not grow:\n{stage.run.testimony()}")


@pytest.mark.parametrize("seed", seeds(2 if WHOLE else 1, first=1))
def test_lanes_that_grow_while_processes_are_killed_and_a_table_changes_cost_no_event_and_double_none(
    source: PostgresHarness, evidence: Path, seed: int, account: Callable[..., None]
) -> None:
    dice = Random(seed)
    with staged(source, evidence, **SPEC) as stage:
        stage.run.begin(source)
        with Load(source, seed, pause=0.1, rows_per_second=200).running():
            pile_up(source)
            for victim in VICTIMS if WHOLE else dice.sample(VICTIMS, 1):
                wait_for_more_lanes(stage)
                time.sleep(dice.uniform(0, 1))
                stage.kill(victim, dice)
                stage.wait_for_progress()
                pile_up(source)
                time.sleep(dice.uniform(0, 1.5))  # it grows, or is about to
                stage.kill(victim, dice)
                stage.wait_for_progress()
        events = stage.finish()
        account(kills=dict(stage.run.kills), events=events, duplicates=0)
