"""A pipeline loses its slot and recovers, by itself or by command, while everybody writes to its tables. It is killed
while they are copied again, and while what the source lost is removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.actors import RunActor, on_stage, wait_for, write_pipeline
from tests.crash.postgres import PostgresHarness
from tests.crash.test_snapshot import MOVES, CopyStage, fill
from tests.crash.workload import Load
from tests.service.snapshot.test_recovery import FAILPOINTS, lose_slot, recover
from tests.sources.support import execute, query
from tests.support.seed import choose
from tests.support.seed import dice as chances
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.starrocks_standin import StarRocks

SECONDS = 240.0
Rows = list[tuple[int, str]]


def rows_of(ask: Callable[[], list[Any]]) -> Rows | str:
    """A table that is not there yet is no answer, and no error either."""
    try:
        return sorted((int(id), str(v)) for id, v in ask())
    except Exception as error:  # noqa: BLE001  each client has its own
        return f"{type(error).__name__}: {error}"


def test_a_run_that_loses_its_slot_ends_with_every_state_sink_equal_to_the_source(
    postgres18: Postgres, tmp_path: Path
) -> None:
    with (
        postgres18.database("recover_run") as dsn,
        postgres18.database("recover_run_target") as target,
        ClickHouse(tmp_path / "clickhouse") as clickhouse,
        StarRocks(tmp_path / "starrocks") as starrocks,
    ):
        execute(
            dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 50) n",
        )  # fmt: skip
        source = {
            "type": "postgres",
            "config": {"id": "recover-run", "dsn": dsn, "tables": ["public.t"], "snapshot": {"mode": "when_needed"}},
        }
        stars = {"url": f"http://127.0.0.1:{starrocks.http_port}", "mysql_port": starrocks.mysql_port}
        sinks: list[dict[str, Any]] = [
            {"type": "postgres", "config": {"id": "pg", "dsn": target, "table": "${source.table}"}},
            {
                "type": "clickhouse",
                "config": {"id": "ch", "url": f"http://127.0.0.1:{clickhouse.port}", "database": "d"},
            },
            {"type": "starrocks", "config": {"id": "sr", **stars, "database": "d"}},
        ]
        run = RunActor(tmp_path, write_pipeline(tmp_path, source, sinks), "recovery.removed:1")

        def equal() -> bool:
            run.keep_running()
            wanted = sorted(query(dsn, "SELECT id, v FROM t"))
            return all(found == wanted for found in answers())

        def answers() -> list[Rows | str]:
            return [
                rows_of(lambda: query(target, "SELECT id, v FROM t")),
                rows_of(lambda: [r.values() for r in clickhouse.query("SELECT id, v FROM d.t FINAL")]),
                rows_of(lambda: [r.values() for r in starrocks.query("SELECT id, v FROM `d`.`t`")]),
            ]

        with on_stage(run):
            run.start()
            wait_for(equal, SECONDS, lambda: f"the first copy: {answers()}\n{run.testimony()}")
            lose_slot(dsn)
            execute(
                dsn, "DELETE FROM t WHERE id % 5 = 0", "UPDATE t SET v = 'in the gap' WHERE id % 7 = 0",
                "INSERT INTO t VALUES (100, 'new')",
            )  # fmt: skip
            wait_for(lambda: run.crashed_at_failpoint, SECONDS, lambda: f"nothing was removed:\n{run.testimony()}")
            wait_for(lambda: not run.alive, 60, "it was to end there")
            wait_for(equal, SECONDS, lambda: f"after the recovery: {answers()}\n{run.testimony()}")
            execute(dsn, "INSERT INTO t VALUES (101, 'goes on')", "DELETE FROM t WHERE id = 1")
            wait_for(equal, SECONDS, lambda: f"after it: {answers()}\n{run.testimony()}")
            assert run.stop(SECONDS) == 0, run.output[-3000:]


# Where the recovery itself is killed, and where the copy after it is.
_KILLS = tuple(zip(FAILPOINTS, ("snapshot.staged:2", "snapshot.adopted:1", "snapshot.filtered:1", "recovery.removed:1"),
                   strict=True))  # fmt: skip


@pytest.mark.parametrize(("command_at", "copy_at"), choose("recovery under writes", _KILLS))
def test_a_recovery_beside_writes_ends_with_the_sources_rows_whoever_is_killed(
    source: PostgresHarness, target: PostgresHarness, evidence: Path, account: Callable[..., None], command_at: str,
    copy_at: str,
) -> None:  # fmt: skip
    """What changed in the gap is in no event: a state sink has it from the copy, and loses what is not in it."""
    luck = chances("recovery under writes", command_at)
    fill(source)
    stage = CopyStage(source, target, evidence)
    with on_stage(stage.run):
        load = Load(source, luck.randrange(1 << 30), clients=2, pause=0.15, rows_per_second=100, moves=MOVES)
        with load.running():
            stage.run.begin(source)
            wait_for(stage.copied, SECONDS, lambda: f"the first copy does not end:\n{stage.run.testimony()}")
            stage.run.kill("driver", luck)
            lose_slot(source.dsn)
            recover(stage.run.pipeline, "--snapshot", crash_at=command_at)
            if command_at != "recovery.noted":  # else everything was done
                recover(stage.run.pipeline, "--snapshot")
            stage.run.crash_at = copy_at
            stage.run.start()
            wait_for(stage.logged, SECONDS, lambda: f"the second copy is not in the log:\n{stage.run.testimony()}")
        stage.note_end()
        wait_for(stage.copied, SECONDS, lambda: f"the second copy does not end:\n{stage.run.testimony()}")
        met, stage.run.crash_at = stage.run.crashed_at_failpoint, ""
        stage.deliver_all()
    stage.check_target()
    assert met, f"nobody passed {copy_at}"
    account(killed_at=f"{command_at}, {copy_at}", transactions=load.done.total())
