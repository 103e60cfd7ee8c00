from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocks import make_change
from tidemill.config.spec import Batch, Sharding
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.stream.batch.admission import ROWS_PER_LANE, admit
from tidemill.stream.batch.plan import Plan
from tidemill.stream.spark.source import BlockStream, admission, options

RULE: dict[str, Any] = {
    "max_events": 100, "max_bytes": 1 << 30, "max_ms": 0, "respect_tx": True, "count": 4, "asked": True, "by": "hash",
}  # fmt: skip


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    yield log
    log.close()


@pytest.fixture
def reader(tmp_path: Path, writer: LogWriter) -> LogReader:
    return LogReader(str(tmp_path / "log"))


def ask(reader: LogReader, start: int = 0, *, wait: float = 0.0, **rule: Any) -> dict[str, Any]:
    return admit(reader, RULE | rule, {"offset": start}, wait=wait)


def test_nothing_new_is_the_start_itself(reader: LogReader) -> None:
    assert admit(reader, RULE, {"offset": 0, "lanes": 3, "by": "x"}, wait=0.01) == {"offset": 0, "lanes": 3, "by": "x"}


def test_a_log_that_capture_has_not_made_yet_is_an_empty_one(tmp_path: Path) -> None:
    assert ask(LogReader(str(tmp_path / "later")), 7) == {"offset": 7}


def test_a_batch_ends_at_a_transaction_within_the_limit(reader: LogReader, writer: LogWriter) -> None:
    writer.append(make_change(40, 40, 40))
    assert ask(reader) == {"offset": 80, "lanes": 1, "by": "hash"}
    assert ask(reader, max_events=30)["offset"] == 40
    assert ask(reader, max_events=30, respect_tx=False)["offset"] == 30


def test_a_small_batch_lingers_until_its_oldest_event_is_max_ms_old(reader: LogReader, writer: LogWriter) -> None:
    writer.append(make_change(3))
    assert ask(reader, max_ms=60_000) == {"offset": 0}
    assert ask(reader, max_ms=60_000, max_events=3)["offset"] == 3
    assert ask(reader, wait=3600, max_ms=300)["offset"] == 3  # not after its wait: the run would end before that


def test_a_clock_that_was_set_back_holds_nothing_up(
    reader: LogReader, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append(make_change(3))
    an_hour_ago = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: an_hour_ago)
    writer.append(make_change(2, number=2))  # marked with the time before: a log can be searched by time
    assert ask(reader, max_ms=100)["offset"] == 5
    assert ask(reader, 3, max_ms=100)["offset"] == 5


def test_a_barrier_is_a_batch_of_its_own_and_waits_for_nothing_before_it(reader: LogReader, writer: LogWriter) -> None:
    writer.append(make_change(5))
    writer.append(make_change(2, number=2, barrier=True))
    writer.append(make_change(5, number=3))
    ends = [ask(reader, start, max_ms=60_000 * (start == 0))["offset"] for start in (0, 5, 7)]
    assert ends == [5, 7, 12]


def test_lanes_are_chosen_by_the_batchs_size_and_pinned_in_its_end(reader: LogReader, writer: LogWriter) -> None:
    rows = ROWS_PER_LANE
    writer.append(make_change(rows * 2))
    assert ask(reader, max_events=10**6) == {"offset": rows * 2, "lanes": 2, "by": "hash"}
    assert ask(reader, max_events=10**6, count=1)["lanes"] == 1
    assert ask(reader, max_events=10**6, asked=False)["lanes"] == 1, "a lane nobody asked for must be worth more"


def test_partitions_follow_the_pinned_end_and_nothing_else() -> None:
    stream = BlockStream("", "")
    found = stream.partitions({"offset": 3}, {"offset": 9, "lanes": 2, "by": "hash:a"})
    parts = [lane for lane, _ in (partition.value for partition in found)]
    assert [(p.start, p.end, p.lane, p.lanes, p.by) for p in parts] == [(3, 9, 0, 2, "hash:a"), (3, 9, 1, 2, "hash:a")]


def test_credentials_of_the_log_travel_only_in_the_option_that_spark_hides(reader: LogReader, tmp_path: Path) -> None:
    plan = Plan("p", "s", f"file://key:topsecret@{tmp_path}/log?secret_key=hidden", "g", "r", ())
    given = options(plan, admission(0, Batch(), Sharding(), 1, asked=False))
    shown = {name: value for name, value in given.items() if "secret" not in name}
    assert "topsecret" not in str(shown)
    assert "hidden" not in str(shown)
    assert "admission" in shown
