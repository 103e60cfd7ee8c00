"""Readers of chunks that stand for seconds, and what may become of each: killed, stopped, or without its server.

The pipeline goes on without help from outside, and afterwards delivered files and tables are the source's.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.crash.actors import on_stage, session_of, wait_for
from tests.crash.postgres import PostgresHarness
from tests.crash.test_snapshot import MOVES, CopyStage, fill
from tests.crash.workload import Load
from tests.support.seed import choose
from tests.support.seed import dice as chances

_SECONDS = 180
_ROWS = 30_000
# Of threads that read chunks; everything else has this process's own.
_NICENESS = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)


def find_readers(stage: CopyStage) -> list[int]:
    """Workers in which a thread gives way to lanes."""
    return [pid for pid in session_of(stage.run.pid) if _NICENESS in map(_niceness, _threads(pid))]


def _threads(pid: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []


def _niceness(thread: Path) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int((thread / "stat").read_text().rpartition(")")[2].split()[16])
    return 0


def signal_reader(number: int) -> Callable[[CopyStage], int]:
    def strike(stage: CopyStage) -> int:
        for pid in find_readers(stage)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                return 1
        return 0

    return strike


def end_sessions(stage: CopyStage) -> int:
    """Of readers that are at a chunk."""
    with psycopg.connect(stage.source.dsn, autocommit=True) as db:
        found = db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND state <> 'idle' AND query LIKE 'COPY %'"
        )
        return len(found.fetchall())


def restart_server(stage: CopyStage) -> int:
    stage.source.restart("kill")
    return 1


# How often each strikes; a reader that is stopped is waited for until it is certain to be dead.
STRIKES: dict[str, tuple[Callable[[CopyStage], int], int]] = {
    "killed": (signal_reader(signal.SIGKILL), 3),
    "stopped": (signal_reader(signal.SIGSTOP), 1),
    "sessions ended": (end_sessions, 10),
    "server killed": (restart_server, 2),
}


@pytest.mark.parametrize("what", choose("chunk readers", list(STRIKES)))
def test_readers_that_are_lost_in_the_middle_of_a_copy_cost_no_row_and_double_none(
    source: PostgresHarness, target: PostgresHarness, evidence: Path, account: Callable[..., None], what: str
) -> None:
    strike, times = STRIKES[what]
    fill(source)
    with psycopg.connect(source.dsn, autocommit=True) as db:
        db.execute(
            "INSERT INTO accounts (id, balance, note) SELECT n, n, 'there before ' || n"
            f" FROM generate_series(100000, {100000 + _ROWS}) n".encode()
        )
    stage = CopyStage(source, target, evidence, master="local[4]")
    struck = adopted = 0
    with on_stage(stage.run):
        load = Load(source, chances("chunk readers", what).randrange(1 << 30), pause=0.15, rows_per_second=100,
                    moves=MOVES)  # fmt: skip
        with load.running():
            stage.run.begin(source)
            while struck < times and not stage.copied():

                def goes_on(before: int = adopted) -> bool:
                    return stage.count_adopted() > before or stage.copied()

                wait_for(goes_on, _SECONDS, lambda: f"no chunk since reader was {what}:\n{stage.run.testimony()}")
                adopted = stage.count_adopted()
                struck += strike(stage)
            wait_for(stage.copied, _SECONDS, lambda: f"the copy does not end:\n{stage.run.testimony()}")
        events = stage.finish()
    assert struck, "the copy was over before"
    account(what=what, struck=struck, chunks_before_the_last=adopted, events=events)
