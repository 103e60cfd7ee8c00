"""The driver's side and the lane's side of standing lanes over a real socket; threads stand in for Spark's tasks."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import LogError
from tidemill.stream.batch.failures import Carried
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.lane.standing import StandingPlace, stand
from tidemill.stream.position.pin_file import PinnedBatch
from tidemill.stream.trigger import channel as wire
from tidemill.stream.trigger import standing
from tidemill.stream.trigger.beats import beats
from tidemill.stream.trigger.channel import BEAT, DELIVER, Channel, call
from tidemill.stream.trigger.standing import EpochLost, LaneFailed, LaneServer, StandingDispatch, StandingLanes

PLAN = Plan("mill", "source", "log", "mill", "run", ())


class Stage:
    """One epoch with lanes in threads. `work` is what a lane does with a delivery."""

    def __init__(self) -> None:
        self.server = LaneServer("127.0.0.1", "127.0.0.1")
        self.server.expect(1)
        self.over = threading.Event()
        self.seen: list[tuple[Lane, Mapping[str, Collection[int]] | None, Any]] = []
        self.work: Callable[[Lane], None] = lambda lane: None
        self.tasks: list[threading.Thread] = []

    def stand(self, lanes: int, *, epoch: int = 1) -> StandingLanes:
        place = self.server.place(lanes)
        for lane in range(lanes):
            task = threading.Thread(target=stand, args=(place, PLAN, epoch, lane, self._deliver))
            task.start()
            self.tasks.append(task)
        return StandingLanes(self.server.gather(lanes, 10, self.over), self.over)

    def _deliver(self, plan: Plan, lane: Lane, only: Mapping[str, Collection[int]] | None) -> pa.RecordBatch:
        self.seen.append((lane, only, plan.known))
        self.work(lane)
        return pa.RecordBatch.from_pydict({"lane": [lane.lane], "end": [lane.end]})

    def returned(self, seconds: float = 10) -> bool:
        for task in self.tasks:
            task.join(seconds)
        return not any(task.is_alive() for task in self.tasks)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.server.close()
    assert stage.returned(), "a lane outlived its driver"


def test_a_batch_goes_to_every_lane_and_the_results_come_home_as_one_table(stage: Stage) -> None:
    lanes = stage.stand(2)
    results = StandingDispatch(lanes, PinnedBatch(10, 20, 2, "hash")).first(PLAN)
    assert sorted(results.to_pylist(), key=lambda row: row["lane"]) == [{"lane": 0, "end": 20}, {"lane": 1, "end": 20}]
    assert {lane for lane, _, _ in stage.seen} == {Lane(10, 20, lane, 2, "hash") for lane in range(2)}
    lanes.dismiss()


def test_the_driver_sleeps_while_a_lane_works_although_more_is_appended(stage: Stage) -> None:
    lanes = stage.stand(1)
    appended, log = socket.socketpair()
    log.send(b"an append that waits for the next batch")
    lanes.watch(appended.fileno())
    looks: list[float] = []
    hear = lanes.hear

    def counted() -> Iterator[tuple[int, bytes, bytes]]:
        looks.append(time.monotonic())
        return hear()

    lanes.hear = counted  # type: ignore[method-assign]
    stage.work = lambda lane: time.sleep(0.5)
    StandingDispatch(lanes, PinnedBatch(0, 5, 1, "hash")).first(PLAN)
    assert len(looks) < 10, "it looks again and again"
    lanes.wait(60)  # not while it waits for work: this returns at once
    lanes.dismiss()
    appended.close()
    log.close()


def test_a_retry_goes_to_the_lane_that_failed_with_what_is_left_out(stage: Stage) -> None:
    lanes = stage.stand(2)
    StandingDispatch(lanes, PinnedBatch(0, 5, 2, "hash")).again(PLAN, {Lane(0, 5, 1, 2, "hash"): {"s": frozenset({3})}})
    assert [(lane.lane, only) for lane, only, _ in stage.seen] == [(1, {"s": [3]})]
    lanes.dismiss()


def test_a_batch_pinned_with_more_lanes_than_stand_keeps_its_lanes(stage: Stage) -> None:
    lanes = stage.stand(2)
    results = StandingDispatch(lanes, PinnedBatch(0, 5, 5, "hash")).first(PLAN)
    assert sorted(results.column("lane").to_pylist()) == [0, 1, 2, 3, 4]
    assert {lane.lanes for lane, _, _ in stage.seen} == {5}
    lanes.dismiss()


def test_lanes_get_what_is_known_of_structures_when_it_changed(stage: Stage) -> None:
    lanes = stage.stand(1)
    known = {"orders": {"length": "int64"}}
    for plan in (PLAN, Plan("mill", "source", "log", "mill", "run", (), known=known)):
        StandingDispatch(lanes, PinnedBatch(0, 5, 1, "hash")).first(plan)
    assert [known for _, _, known in stage.seen] == [{}, known]
    lanes.dismiss()


def test_an_error_before_a_lane_delivers_comes_home_as_out_of_a_spark_job(stage: Stage) -> None:
    def fail(lane: Lane) -> None:
        raise Carried(LogError("the log is away"))

    lanes = stage.stand(1)
    dispatch = StandingDispatch(lanes, PinnedBatch(0, 5, 1, "hash"))
    stage.work = fail
    with pytest.raises(LaneFailed, match=r"tidemill-error: .*the log is away"):
        dispatch.first(PLAN)
    stage.work = lambda lane: None
    assert dispatch.first(PLAN).num_rows == 1, "the lane still stands"
    lanes.dismiss()


def test_a_task_that_dies_ends_the_epoch_at_once(stage: Stage) -> None:
    channel = call(*_at(stage.server.place(1)), {"epoch": 1, "lane": 0})
    lanes = StandingLanes(stage.server.gather(1, 10, stage.over), stage.over)
    threading.Timer(0.1, channel.close).start()
    with pytest.raises(EpochLost, match="is gone"):
        StandingDispatch(lanes, PinnedBatch(0, 5, 1, "hash")).first(PLAN)
    lanes.dismiss()


def test_a_lane_that_says_nothing_for_too_long_ends_the_epoch(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine is cut off, or its process was stopped: the connection looks whole."""
    monkeypatch.setattr(standing, "DEAD_SECONDS", 0.5)
    monkeypatch.setattr(standing, "BEAT_SECONDS", 0.1)
    channel = call(*_at(stage.server.place(1)), {"epoch": 1, "lane": 0})
    lanes = StandingLanes(stage.server.gather(1, 10, stage.over), stage.over)
    with pytest.raises(EpochLost, match="silent"):
        StandingDispatch(lanes, PinnedBatch(0, 5, 1, "hash")).first(PLAN)
    channel.close()
    lanes.dismiss()


def test_a_lane_that_delivers_for_long_is_not_taken_for_dead(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "DEAD_SECONDS", 0.5)
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.05)
    stage.work = lambda lane: time.sleep(1.5)
    lanes = stage.stand(1)
    assert StandingDispatch(lanes, PinnedBatch(0, 5, 1, "hash")).first(PLAN).num_rows == 1
    lanes.dismiss()


def test_a_lane_returns_when_its_driver_is_silent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.stream.lane.standing.SILENT_DRIVER_SECONDS", 0.3)
    lanes = stage.stand(1)
    assert stage.returned()
    lanes.dismiss()


def test_a_lane_waits_for_minutes_for_a_driver_that_gets_no_cpu(stage: Stage) -> None:
    """Two hundred lanes that returned after a pause of their driver would all have to begin anew."""
    assert wire.SILENT_DRIVER_SECONDS >= 4 * wire.DEAD_SECONDS
    lanes = stage.stand(1)
    stage.tasks[0].join(1.0)  # nobody beats
    assert StandingDispatch(lanes, PinnedBatch(0, 5, 1, "hash")).first(PLAN).num_rows == 1
    lanes.dismiss()


def test_heartbeats_of_a_lane_at_rest_wake_nobody_and_its_end_does(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.05)
    lanes = stage.stand(1)
    began = time.monotonic()
    lanes.wait(1.0)
    assert time.monotonic() - began >= 1.0
    assert any(kind == BEAT for _, kind, _ in lanes.hear()), "they are there for who listens"
    place = stage.server.place(1)
    stage.server.expect(2)
    channel = call((place.host, place.port), bytes.fromhex(place.token), {"epoch": 2, "lane": 0})
    other = StandingLanes(stage.server.gather(1, 10, stage.over), stage.over)
    threading.Timer(0.1, channel.close).start()
    other.wait(60)
    assert time.monotonic() - began < 30
    with pytest.raises(EpochLost, match="is gone"):
        list(other.hear())
    lanes.dismiss()
    other.dismiss()


def test_one_thread_beats_for_all_and_waits_for_none_that_does_not_read(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.02)
    ours, theirs = socket.socketpair()
    deaf = Channel(ours)
    with contextlib.suppress(TimeoutError):
        ours.settimeout(0.2)
        while True:
            ours.sendall(bytes(1 << 16))  # its buffer is full: it was stopped
    lanes = stage.stand(3)
    with beats.to([deaf]), lanes.beating():
        assert sum(thread.name == "lane-beats" for thread in threading.enumerate()) == 1
        assert StandingDispatch(lanes, PinnedBatch(0, 5, 3, "hash")).first(PLAN).num_rows == 3
        stage.tasks[0].join(0.5)
        assert stage.tasks[0].is_alive()
    deaf.close()
    theirs.close()
    lanes.dismiss()
    assert stage.returned()


def test_a_spark_job_that_ended_ends_the_epoch(stage: Stage) -> None:
    lanes = stage.stand(1)
    stage.over.set()
    with pytest.raises(EpochLost, match="Spark ended the job"):
        list(lanes.hear())
    lanes.dismiss()


def test_a_task_of_an_epoch_that_is_over_is_sent_home(stage: Stage) -> None:
    stage.server.expect(2)
    place = stage.server.place(1)
    late = threading.Thread(target=stand, args=(place, PLAN, 1, 0, stage._deliver))
    late.start()
    late.join(10)
    assert not late.is_alive()
    assert stage.server.gather(1, 0, stage.over) == {}


def test_who_does_not_know_the_token_is_no_lane_and_no_driver(stage: Stage) -> None:
    place = stage.server.place(1)
    with pytest.raises(OSError, match=r"."):
        call((place.host, place.port), b"another", {"epoch": 1, "lane": 0})
    assert stage.server.gather(1, 0.2, stage.over) == {}
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        pretending = threading.Thread(target=_pretend, args=(impostor,), daemon=True)
        pretending.start()
        with pytest.raises(ConnectionRefusedError, match="the driver does not know"):
            call(("127.0.0.1", impostor.getsockname()[1]), b"token", {"epoch": 1, "lane": 0})
        pretending.join(10)


def test_a_caller_that_never_speaks_does_not_hold_up_the_lanes(stage: Stage) -> None:
    place = stage.server.place(1)
    with socket.create_connection((place.host, place.port)):
        stage.stand(1).dismiss()


def test_a_driver_without_a_file_left_for_a_moment_lets_lanes_in_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listened any more, and every epoch of the run missed its lanes."""
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def accept_later(listener: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    stage = Stage()
    try:
        lanes = stage.stand(1)
        assert StandingDispatch(lanes, PinnedBatch(0, 5, 1, "hash")).first(PLAN).num_rows == 1
        lanes.dismiss()
    finally:
        stage.server.close()
    assert stage.returned()


def test_a_frame_that_is_larger_than_agreed_is_refused_before_it_is_kept() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\xff\xff\xff\xff\x00")
        with pytest.raises(ConnectionError, match="4294967295 bytes"):
            Channel(ours).receive(1)


def test_frames_come_whole_whatever_the_pieces() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = Channel(ours), Channel(theirs)
        sender.send(BEAT)
        sender.send(DELIVER, b"ab", memoryview(b"c" * 100_000))
        assert receiver.receive(1) == (BEAT, b"")
        assert receiver.receive(1) == (DELIVER, b"ab" + b"c" * 100_000)
        assert receiver.receive(0) is None


def _at(place: StandingPlace) -> tuple[tuple[str, int], bytes]:
    return (place.host, place.port), bytes.fromhex(place.token)


def _pretend(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    with sock:
        channel = Channel(sock)
        channel.send(wire.HELLO, bytes(32))
        channel.receive(5)
        channel.send(wire.HELLO, bytes(32))
        with contextlib.suppress(ConnectionError):
            channel.receive(5)
