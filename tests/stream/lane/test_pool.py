"""What stays in a worker between batches: its memory must not grow with the pipelines that it has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from tests.support.blocks import make_change
from tidemill.contracts import Sink
from tidemill.log import LogConfig, LogWriter
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.lane.deliver import deliver
from tidemill.stream.lane.pool import POOL, Pool


class ClosableSink:
    """Stands in for a sink with a connection."""

    def __init__(self) -> None:
        self.config: Any = None
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_a_segment_is_not_mapped_when_its_events_were_delivered(tmp_path: Path) -> None:
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    log.append(make_change(10))
    log.close()
    plan = Plan("p", "src", str(tmp_path / "log"), "p", "run", (("blackhole", {"id": "none"}),))
    (answer,) = deliver(plan, Lane(0, 10, 0, 1, "hash"))
    POOL.close()
    assert answer.receipt.events == 10
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_tools_of_a_pipeline_that_delivers_nothing_any_more_are_closed_and_others_stay(tmp_path: Path) -> None:
    pool, sinks = Pool(), {name: ClosableSink() for name in ("ended", "idle")}
    for name, sink in sinks.items():
        pool.tools(name, "run", str(tmp_path)).sinks["s"] = cast(Sink, sink)
    pool.tools("ended", "run", str(tmp_path)).used_at -= 601
    idle = pool.tools("idle", "run", str(tmp_path))
    idle.used_at -= 590
    pool.tools("busy", "run", str(tmp_path))
    assert {name: sink.closed for name, sink in sinks.items()} == {"ended": True, "idle": False}
    assert pool.tools("idle", "run", str(tmp_path)) is idle
    pool.close()
    assert sinks["idle"].closed
