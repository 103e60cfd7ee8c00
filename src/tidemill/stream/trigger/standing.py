"""The driver's side of standing lanes (ADR 43): who is there, work sent to them, and their results.

`LaneServer` listens for the lanes of one run; `StandingLanes` are those of one epoch. Nothing here decides what is
delivered: realtime.py does.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import orjson
import pyarrow as pa

from tidemill.model.position import Offset
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.lane.standing import StandingPlace
from tidemill.stream.position.pin_file import PinnedBatch
from tidemill.stream.trigger.beats import beats
from tidemill.stream.trigger.channel import (
    BEAT_SECONDS,
    DEAD_SECONDS,
    DELIVER,
    END,
    FAILED,
    RESULTS,
    Channel,
    welcome,
)
from tidemill.telemetry.events import warn

_BACKLOG = 64
_REST_SECONDS = 0.2  # after an error of the listener


class EpochLost(Exception):
    """A lane, its worker or its connection is gone. What was pinned is sent again in the next epoch."""


class LaneFailed(Exception):
    """A lane could not even begin to deliver. Its text is that of `Carried`, as it comes out of a Spark job."""


class LaneServer:
    """Listens where executors reach the driver. A caller that does not know the token, or whose epoch is over, is sent
    away."""

    def __init__(self, host: str, bind: str) -> None:
        self._token = secrets.token_bytes(32)
        self._host = host
        self._listener = socket.create_server((bind, 0), backlog=_BACKLOG)
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._epoch = -1
        self._here: dict[int, Channel] = {}
        self._seen: set[int] = set()
        threading.Thread(target=self._accept, name="lane-server", daemon=True).start()

    def place(self, lanes: int) -> StandingPlace:
        return StandingPlace(self._host, self._listener.getsockname()[1], self._token.hex(), lanes)

    def expect(self, epoch: int) -> None:
        """From now on only lanes of this epoch are let in; -1 for none."""
        with self._changed:
            left, self._here, self._seen, self._epoch = self._here, {}, set(), epoch
        for channel in left.values():
            _dismiss(channel)

    def gather(self, lanes: int, seconds: float, *over: threading.Event) -> dict[int, Channel]:
        """All lanes of the epoch, or those that came within `seconds`, or before one of the events was set."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(self._here) < lanes and not any(event.is_set() for event in over):
                if (left := deadline - time.monotonic()) <= 0:
                    break
                self._changed.wait(min(left, 0.2))
            here, self._here = self._here, {}
            return here

    def close(self) -> None:
        self._closed.set()
        self.expect(-1)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # `close` alone does not wake who waits in `accept`
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if self._closed.wait(_REST_SECONDS):
                    return
                # The process has no file left, or the caller has gone: the next one may be let in.
                warn("stream.lane_refused", error=error.strerror or type(error).__name__)
                continue
            threading.Thread(target=self._let_in, args=(sock,), name="lane-hello", daemon=True).start()

    def _let_in(self, sock: socket.socket) -> None:
        try:
            channel, hello = welcome(sock, self._token)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sock.close()
            warn("stream.lane_refused", error=str(error) or type(error).__name__)
            return
        with self._changed:
            if hello["epoch"] == self._epoch and hello["lane"] not in self._seen:
                self._here[hello["lane"]] = channel
                self._seen.add(hello["lane"])
                self._changed.notify_all()
                return
        _dismiss(channel)  # of an epoch that is over; or a second try of a task, whose first is gone


class StandingLanes:
    """The lanes of one epoch. One thread sends work and waits for results; heartbeats come from another."""

    def __init__(self, channels: Mapping[int, Channel], over: threading.Event) -> None:
        self._channels = [channels[lane] for lane in sorted(channels)]
        self._over = over  # Spark's job has ended
        self._sent: list[Plan | None] = [None] * len(self._channels)  # the plan that each lane has
        self._working, self._resting = select.poll(), select.poll()
        for channel in self._channels:
            self._working.register(channel, select.POLLIN)
            self._resting.register(channel, select.POLLRDHUP)

    def run(self, plan: Plan, work: Sequence[tuple[Lane, Mapping[str, Collection[Offset]] | None]]) -> pa.Table:
        """The lanes' results, as `DataFrame.toArrow` gives those of a job. A batch that was pinned with more lanes than
        stand now shares them; the order of one lane's work stays."""
        due = [0] * len(self._channels)
        for lane, only in work:
            at = lane.lane % len(self._channels)
            message: dict[str, Any] = {"lane": asdict(lane)}
            message["only"] = only and {sink: sorted(out) for sink, out in only.items()}
            if plan is not self._sent[at]:
                message["changing"] = plan.changing
                self._sent[at] = plan
            with self._losing():
                self._channels[at].send(DELIVER, orjson.dumps(message))
            due[at] += 1
        results: list[pa.RecordBatch] = []
        failure: LaneFailed | None = None
        while any(due):
            self._working.poll(int(BEAT_SECONDS * 1000))
            for at, kind, payload in self.hear():
                if kind == RESULTS:
                    results += pa.ipc.open_stream(payload)
                elif kind == FAILED:
                    failure = LaneFailed(payload.decode())
                else:
                    continue
                due[at] -= 1
        if failure is not None:
            raise failure
        return pa.Table.from_batches(results)

    def wait(self, seconds: float) -> None:
        """Until a lane is gone, or what is watched can be read. Heartbeats wait until somebody hears them: those of two
        hundred pipelines at rest came two hundred times a second."""
        self._resting.poll(int(seconds * 1000))

    def watch(self, file: int) -> None:
        """From now on `wait` also ends when this can be read. `run` does not: what comes meanwhile is not its concern,
        and would not let it sleep."""
        self._resting.register(file, select.POLLIN)

    def hear(self) -> Iterator[tuple[int, bytes, bytes]]:
        """What lanes have said by now. `EpochLost` when one is gone, or silent for too long."""
        if self._over.is_set():
            raise EpochLost("Spark ended the job of the standing lanes")
        for at, channel in enumerate(self._channels):
            with self._losing():
                while frame := channel.receive(0):
                    yield at, *frame
            if time.monotonic() - channel.last_heard > DEAD_SECONDS:
                raise EpochLost(f"standing lane {at} has been silent for {DEAD_SECONDS:.0f} seconds")

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Heartbeats to all lanes, also while the caller waits for a store or pauses before a retry."""
        with beats.to(self._channels):
            yield

    def dismiss(self) -> None:
        """The epoch is over: lanes return when they have finished what they write."""
        for channel in self._channels:
            _dismiss(channel)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EpochLost(f"a standing lane is gone: {error}") from error


class StandingDispatch:
    """A pinned batch on its way over standing lanes."""

    def __init__(self, lanes: StandingLanes, batch: PinnedBatch, planned_at: int = 0) -> None:
        self._lanes, self._batch, self._planned_at = lanes, batch, planned_at

    def bounds(self, start: Offset) -> PinnedBatch:
        return self._batch

    def planned_at(self) -> int:
        return self._planned_at

    def first(self, plan: Plan, sinks: Sequence[str] = ()) -> pa.Table:
        batch = self._batch
        return self._lanes.run(
            plan, [(Lane(batch.start, batch.end, lane, batch.lanes, batch.by), None) for lane in range(batch.lanes)]
        )

    def again(self, plan: Plan, work: Mapping[Lane, Mapping[str, Collection[Offset]]]) -> pa.Table:
        return self._lanes.run(plan, list(work.items()))


def _dismiss(channel: Channel) -> None:
    with suppress(OSError):  # it is gone already
        channel.send(END)
    channel.close()
