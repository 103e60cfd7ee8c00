"""What only a binlog does: files are purged under a stream or behind its back, and a transaction of a million rows."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.crash.actors import capture_status, wait_for
from tests.crash.mysql import MysqlHarness
from tests.crash.test_capture import Stage, staged
from tests.crash.workload import Load
from tidemill.log.reader import LogReader

BOTH = ("mysql", "mariadb")


@pytest.mark.parametrize("source", ["mysql-file", "mariadb"], indirect=True)
def test_files_that_are_purged_under_a_stream_cost_no_event(source: MysqlHarness, evidence: Path) -> None:
    with staged(source, evidence) as stage:
        stage.begin()
        with Load(source, seed=41).running():
            for _ in range(4):
                time.sleep(1)
                stage.consume()
                source.purge()
            stage.enough()
        stage.finish()


@pytest.mark.parametrize("source", BOTH, indirect=True)
def test_files_that_are_purged_before_they_were_read_stop_capture_and_nothing_is_skipped(
    source: MysqlHarness, evidence: Path
) -> None:
    with staged(source, evidence) as stage:
        stage.begin()
        with Load(source, seed=43).running():
            stage.enough()
        wait_for(lambda: _captured(stage) >= source.tally().total(), 180, lambda: stage.capture.output[-3000:])
        stage.capture.kill()
        held = _captured(stage)
        with Load(source, seed=44).running() as load:
            wait_for(lambda: load.done.total() > 10, 180, "nothing is written")
        wait_for(partial(_purge_all, source, _files(source)), 120, "the server keeps what it sends to nobody")
        stage.capture.start()
        wait_for(lambda: not stage.capture.alive, 180, lambda: f"it goes on:\n{stage.capture.output[-3000:]}")
        error = capture_status(stage.capture.pipeline)["error"]
        assert "purged" in error["what"], error
        assert "tidemill recover" in error["fix"], error
        assert _captured(stage) == held


@pytest.mark.parametrize("source", BOTH, indirect=True)
def test_a_transaction_of_a_million_rows_passes_through_bounded_memory(source: MysqlHarness, evidence: Path) -> None:
    with staged(source, evidence) as stage:
        stage.begin()
        session = source.session()
        session.move("huge", Random(1))  # kernels are loaded, buffers have their size
        wait_for(lambda: _captured(stage) >= source.tally().total() > 0, 180, lambda: stage.capture.output[-3000:])
        before, peak = _captured(stage), _peak_bytes(stage.capture.pid)
        start = source.written()
        session.move("million", Random(1))
        session.close()
        size = source.written() - start
        wait_for(lambda: _captured(stage) >= before + 1_000_000, 120, lambda: stage.capture.output[-3000:])
        assert _captured(stage) == before + 1_000_000
        grown = _peak_bytes(stage.capture.pid) - peak
        assert size > 150 << 20
        assert grown < size // 3, f"{grown >> 20} MiB more for a transaction of {size >> 20} MiB"
        stage.capture.kill()


def _files(source: MysqlHarness) -> set[str]:
    return {row[0] for row in source.server.query("SHOW BINARY LOGS")}


def _purge_all(source: MysqlHarness, files: set[str]) -> bool:
    """A server keeps what it sends until it notices that its reader was killed."""
    source.purge()
    return not files & _files(source)


def _captured(stage: Stage) -> int:
    log = stage.capture.pipeline.log_uri
    return LogReader(log).tail().offset if any(Path(log).glob("*.idx")) else 0


def _peak_bytes(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10
