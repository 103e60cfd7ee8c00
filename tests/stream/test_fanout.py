"""Groups of sinks side by side on one Spark session: nobody waits for a sink that the policy can do without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.stream.conftest import MICRO_BATCHES, TRIGGER, Mill
from tests.support.blocks import make_change
from tidemill.config.spec import CommitPolicy, Trigger
from tidemill.errors import Refused
from tidemill.log import LogConfig, LogReader
from tidemill.stream.loop import StreamLoop
from tidemill.stream.position import ledger as module
from tidemill.stream.position.commit_policy import Policy
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.spark.source import NAME
from tidemill.telemetry import events

pytestmark = pytest.mark.usefixtures("_no_pause_between_trims")


@pytest.fixture
def _no_pause_between_trims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRIM_EVERY", 0.0)


class Fan:
    """A loop per group, as the supervisor has them."""

    def __init__(
        self, mill: Mill, policy: CommitPolicy, log: LogConfig | None, trigger: Trigger, **sinks: bool
    ) -> None:
        self.mill, self.trigger = mill, trigger
        self.ledger = Ledger(Policy.of("mill", policy, sinks), mill.store, mill.log_uri, log, state=mill.state)
        self.retries: list[str] = []
        self.loops = {group.key: self._loop(group) for group in self.ledger.policy.groups}

    def _loop(self, group: Any) -> StreamLoop:
        return StreamLoop(
            group, self.ledger, "source", self.mill.log_uri, [self.mill.sink(sink) for sink in group.sinks],
            spark=self.mill.spark,
            spark_dir=self.mill.directory / f"spark of {group.key} 100%25",  # a name that URIs dislike
            trigger=self.trigger, on_batch=self.mill.reports.append,
            on_retry=lambda errors: self.retries.extend(errors),
        )  # fmt: skip

    def offset(self, key: str) -> int:
        kept = self.mill.store.load(key)
        return kept.offset if kept else 0

    def wait(self, done: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"retries {self.retries}, pipeline at {self.ledger.checkpoint}"
            time.sleep(0.02)


@contextmanager
def fan(
    mill: Mill, mode: str = "required", quorum: int | None = None, log: LogConfig | None = None,
    trigger: Trigger = TRIGGER, **sinks: bool,
) -> Iterator[Fan]:  # fmt: skip
    built = Fan(mill, CommitPolicy.model_validate({"mode": mode, "quorum": quorum}), log, trigger, **sinks)
    try:
        for loop in built.loops.values():
            loop.start()
        yield built
    finally:
        for loop in built.loops.values():
            loop.ask_to_stop()
        for loop in built.loops.values():
            loop.stop()


def test_with_as_many_sinks_down_as_there_are_cores_the_required_one_goes_on_and_they_catch_up(mill: Mill) -> None:
    faults = [mill.fail("b", 0), mill.fail("c", 0)]
    mill.log.append(make_change(5))
    with fan(mill, a=True, b=False, c=False) as running:
        for number in range(2, 5):
            running.wait(lambda: running.offset("mill") == mill.log.tail.offset)
            mill.log.append(make_change(5, number=number))
        running.wait(lambda: running.offset("mill") == 20 and {"b", "c"} <= set(running.retries))
        assert (running.offset("mill:b"), running.offset("mill:c")) == (0, 0)
        running.wait(lambda: mill.log.acknowledged() == mill.log.tail)
        for fault in faults:
            fault.unlink()
        running.wait(lambda: running.offset("mill:b") == running.offset("mill:c") == 20)
    assert mill.offsets("a") == mill.offsets("b") == mill.offsets("c") == list(range(20))


def test_a_sink_that_hangs_slows_nobody_but_itself(mill: Mill) -> None:
    hold = mill.directory / "b.hold"
    hold.touch()
    mill.log.append(make_change(5))
    with fan(mill, a=True, b=False) as running:
        for number in range(2, 5):
            running.wait(lambda: running.offset("mill") == mill.log.tail.offset)
            mill.log.append(make_change(5, number=number))
        running.wait(lambda: running.offset("mill") == 20)
        assert (running.offset("mill:b"), mill.notes("b"), running.retries) == (0, [], [])
        hold.unlink()
        running.wait(lambda: running.offset("mill:b") == 20)
    assert mill.offsets("a") == mill.offsets("b") == list(range(20))


def test_a_sink_that_was_away_goes_on_at_its_own_position_after_a_restart(mill: Mill) -> None:
    fault = mill.fail("b", 0)
    mill.log.append(make_change(5))
    with fan(mill, a=True, b=False) as running:
        running.wait(lambda: running.offset("mill") == 5)
    fault.unlink()
    mill.log.append(make_change(5, number=2))
    with fan(mill, a=True, b=False) as running:
        running.wait(lambda: running.offset("mill") == running.offset("mill:b") == 10)
    assert mill.offsets("a") == list(range(10))
    assert mill.offsets("b") == list(range(10))


def test_an_optional_sink_that_refuses_ends_its_own_stream_and_no_other(mill: Mill) -> None:
    mill.fail("b", 0, "refuse")
    mill.log.append(make_change(5))
    with fan(mill, a=True, b=False) as running:
        with pytest.raises(Refused, match='sink "b" refused'):
            running.loops["mill:b"].await_end(60)
        mill.log.append(make_change(5, number=2))
        running.wait(lambda: running.offset("mill") == 10)
        assert running.loops["mill"].running
    assert (running.offset("mill:b"), mill.notes("b")) == (0, [])


def test_a_quorum_moves_the_checkpoint_without_the_third_sink(mill: Mill) -> None:
    mill.fail("c", 0)
    mill.log.append(make_change(5))
    with fan(mill, "quorum", 2, a=True, b=True, c=True) as running:
        running.wait(lambda: running.offset("mill") == 5 and mill.log.acknowledged() == mill.log.tail)
        assert running.offset("mill:c") == 0
    assert mill.offsets("a") == mill.offsets("b") == list(range(5))


def test_a_batch_that_is_trimmed_away_while_its_sink_is_down_is_lost_loudly(
    mill: Mill, caplog: pytest.LogCaptureFixture
) -> None:
    mill.log.close()
    mill.__post_init__()  # the same log, in segments of one append
    mill.log._config = LogConfig.model_validate({"fsync": False, "segment_bytes": 1})
    fault = mill.fail("b", 0)
    tiny = LogConfig.model_validate({"keep_for_optional_bytes": 0})
    mill.log.append(make_change(5))
    with fan(mill, log=tiny, a=True, b=False) as running:
        running.wait(lambda: "b" in running.retries)
        for number in (2, 3):
            mill.log.append(make_change(5, number=number))
            running.wait(lambda: running.offset("mill") == mill.log.tail.offset)
        head = LogReader(mill.log_uri).head()
        assert head > 0
        with pytest.raises(Exception, match="the log begins at"):
            running.loops["mill:b"].await_end(60)
        fault.unlink()
    with fan(mill, log=tiny, a=True, b=False) as running:
        running.wait(lambda: running.offset("mill:b") == 15)
    [lost] = [events.fields_of(each) for each in caplog.records if each.getMessage() == "stream.place_lost"]
    first, last = lost["first"], lost["last"]
    assert (first, last + 1 >= head) == (0, True)  # the log was trimmed once more after `head` was read, or not yet
    assert mill.offsets("b") == list(range(last + 1, 15))
    assert not list(mill.directory.glob("spark of*%2525*"))


def test_streams_that_start_at_once_share_an_environment_that_threads_may_write_to(mill: Mill) -> None:
    """Spark writes into it as each starts; what it loses there makes every job of the session unreadable."""
    mill.log.append(make_change(3))
    with fan(mill, trigger=MICRO_BATCHES, a=True, b=False, c=False) as side_by_side:
        side_by_side.wait(lambda: all(side_by_side.offset(key) == 3 for key in side_by_side.loops))
    known = mill.spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(NAME)
    environment = known.dataSourceCls().envVars()
    assert environment.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
    assert "SPARK_LOCAL_DIRS" in environment, "Spark writes elsewhere by now: is register_source still needed?"
