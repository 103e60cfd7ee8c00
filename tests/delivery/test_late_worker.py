"""A worker that everybody believed dead wakes up: its batch was dealt to another number of lanes and delivered by a
later run, and so was the next one. Whatever it does then, a destination that claims `effectively once` has every event
once and the newest rows, and takes the next batch.

It stalls before it asks the destination anything, before its events are sent, or between sending and what makes them
count, where there is such a moment.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.test_kills import SINKS, Proof
from tests.delivery.worker import PIPELINE, SOURCE
from tests.support.seed import sample
from tidemill.contracts import Sink
from tidemill.errors import TidemillError, is_retryable
from tidemill.log import LogReader
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Epoch, Tier
from tidemill.stream.batch.plan import Lane
from tidemill.stream.lane.deliver import _Share

#: Sinks that keep no state and no promise about it, each with its reason.
EXCEPTIONS = {
    "http": "at least once: a receiver tells by the idempotency key and by the event's offset",
    "stdout": "at least once: what was printed is printed",
}
#: Settings with which a sink's promise is whole, each with its reason.
SETTINGS = {
    "starrocks": {
        "deletes": "mark"
    },  # of a row that was removed no version is left to compare: docs/sinks/starrocks.md
}
#: What is called last before the events are sent or count; the late worker stalls there.
LAST_STEPS = {
    "clickhouse": "tidemill.sinks.clickhouse.send.Sender._insert",
    "files": "tidemill.sinks.files.client.FileStore.publish",
    "kafka": "tidemill.sinks.kafka.client.Producer.commit",
    "nats": "tidemill.sinks.nats.client.NatsClient.publish",
    "redis": "tidemill.sinks.redis._RedisDelivery._run",
    "s3": "tidemill.sinks.s3.resume.Manifests.publish",
    "starrocks": "tidemill.sinks.starrocks.client.StreamLoads.load",
}
#: Destinations that hold a later plan back until the delivery of the one before it has ended, with the test of it.
WAITS = {
    "postgres": "a delivery is one transaction under a lock on the plan: tests/sinks/postgres/test_replays.py",
    "pgstream": "a delivery is one transaction under a lock on the plan: tests/sinks/postgres/test_replays.py",
}
OLD, NEW = Epoch(0, "2026-01-01T00:00:00.000+00:00"), Epoch(0, "2026-01-01T00:01:00.000+00:00")
NEXT = Epoch(3, "2026-01-01T00:02:00.000+00:00")
CASES = [
    (name, stall)
    for name in SINKS
    if name not in EXCEPTIONS
    for stall in ("before it begins", "before it sends", "before its last step")
    if name not in WAITS or stall == "before it begins"
]


class Late:
    """One delivery by a worker of its own, which stalls until it is told to go on. Where, says who calls `stall`."""

    def __init__(self, make: Callable[[], Sink], delivery: Delivery) -> None:
        self.make = make
        self.delivery = delivery
        self.errors: list[Exception] = []
        self._stalled, self._go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run)

    def stall(self) -> None:
        self._stalled.set()
        assert self._go.wait(120)

    def start(self) -> None:
        self.thread.start()
        assert self._stalled.wait(240), self.errors

    def finish(self) -> None:
        self._go.set()
        self.thread.join(120)
        assert not self.thread.is_alive()

    def _run(self) -> None:
        """As a lane does it: what is worth a retry is tried again, by a new sink."""
        for _ in range(3):
            sink = self.make()
            try:
                sink.write(self.delivery)
                return
            except Exception as error:  # noqa: BLE001  judged below
                self.errors.append(error)
                if not is_retryable(error):
                    return
            finally:
                sink.close()


@pytest.fixture
def proof(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proof]:
    made = Proof(request.param, tmp_path, truncate=False)
    made.destination.start()
    yield made
    made.destination.stop()


@pytest.mark.parametrize(("proof", "stall"), sample(CASES), indirect=["proof"])
def test_a_worker_that_wakes_up_late_changes_nothing(proof: Proof, stall: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogReader(str(proof.directory / "log"))
    batches = list(_batches(log))
    many, few = (1, 1) if proof.kind.capabilities.single_lane else (3, 2)

    def deliveries(bounds: tuple[int, int], lanes: int, epoch: Epoch) -> list[Delivery]:
        start, end = bounds
        shares = [_Share(log, Lane(start, end, lane, lanes, "hash")) for lane in range(lanes)]
        return [
            Delivery(PIPELINE, SOURCE, start, end, lane, lanes, share.blocks, epoch=epoch)
            for lane, share in enumerate(shares)
        ]

    def make() -> Sink:
        settings = proof.destination.config(proof.destination.port) | SETTINGS.get(proof.name, {})
        built: Sink = proof.kind(proof.kind.Config.model_validate({"id": "s", **settings}))
        return built

    def write(sink: Sink, *some: Delivery) -> None:
        for delivery in some:
            assert sink.write(delivery).ok

    assert make().tier is Tier.EFFECTIVELY_ONCE
    old, now = make(), make()
    *others, mine = deliveries(batches[0], many, OLD)
    write(old, *others)
    late = _stalling(make, mine, stall, proof.name, monkeypatch)
    late.start()
    write(now, *deliveries(batches[0], few, NEW), *deliveries(batches[1], few, NEW))
    late.finish()
    for error in late.errors:
        assert isinstance(error, TidemillError), error
    rest = batches[1:]
    if (
        stall != "before its last step"
    ):  # the run goes on; else it was killed before its last checkpoint, and is started
        write(now, *deliveries(batches[2], few, NEW))
        rest = batches[3:]
    fresh = make()
    for bounds in rest:
        write(fresh, *deliveries(bounds, few, NEXT))
    for sink in (old, now, fresh):
        sink.close()
    assert proof.compare() == 0, late.errors


def test_every_sink_is_asked_or_has_a_reason() -> None:
    asked = {name for name, _ in CASES}
    assert asked | EXCEPTIONS.keys() == set(SINKS)
    assert asked == LAST_STEPS.keys() | WAITS.keys()


@pytest.mark.parametrize("name", LAST_STEPS)
def test_the_last_step_of_every_sink_is_where_it_is_looked_for(name: str) -> None:
    """A sample of the cases above need not meet each of them."""
    target, step = _last_step(name)
    assert callable(getattr(target, step))


def _batches(log: LogReader) -> Iterator[tuple[int, int]]:
    """As the stream cuts them: whole transactions, and nothing across a barrier."""
    start = log.head()
    while start < log.tail().offset:
        end = log.plan(start, max_events=60, max_bytes=1 << 20)
        yield start, end
        start = end


def _stalling(make: Callable[[], Sink], mine: Delivery, stall: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Late:
    late = Late(make, mine)
    if stall == "before it begins":
        late.make = _once_after(late.stall, make)
    elif stall == "before it sends":
        late.delivery = replace(mine, blocks=_held_once(late.stall, mine.blocks))
    else:
        target, step = _last_step(name)
        monkeypatch.setattr(target, step, _for(late, getattr(target, step)))
    return late


def _last_step(name: str) -> tuple[Any, str]:
    place, _, step = LAST_STEPS[name].rpartition(".")
    module, _, owner = place.rpartition(".")
    return getattr(importlib.import_module(module), owner), step


def _once_after(stall: Callable[[], None], function: Callable[[], Sink]) -> Callable[[], Sink]:
    """The function, which stalls the first time it is called."""
    met = threading.Event()

    def called() -> Sink:
        if not met.is_set():
            met.set()
            stall()
        return function()

    return called


def _held_once(stall: Callable[[], None], blocks: Callable[[], Iterator[Block]]) -> Callable[[], Iterator[Block]]:
    """The blocks, which stall the first time when they are read: the worker has them in hand while others deliver."""
    met = threading.Event()

    def called() -> Iterator[Block]:
        held = list(blocks())
        if not met.is_set():
            met.set()
            stall()
        return iter(held)

    return called


def _for(late: Late, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which stalls when the late worker calls it first, itself or by a thread of its sink."""
    before = {thread.ident for thread in threading.enumerate()}
    met = threading.Event()

    def called(*arguments: Any, **named: Any) -> Any:
        mine = late.thread.ident is not None and not met.is_set()
        if mine and threading.get_ident() not in before:
            met.set()
            late.stall()
        return function(*arguments, **named)

    return called
