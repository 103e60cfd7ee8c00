"""A lane that stands: one Spark task for a whole epoch, which delivers what the driver sends it (ADR 43).

It runs in a Spark worker (`stream/spark/epochs.py`). It returns when the driver says that the epoch is
over, or when the driver is gone; a write that is under way is finished first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from tidemill.model.position import Offset
from tidemill.stream.batch.failures import Carried
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.lane.memory import release_memory
from tidemill.stream.trigger.channel import (
    DELIVER,
    END,
    FAILED,
    RESULTS,
    SILENT_DRIVER_SECONDS,
    Channel,
    call,
    heartbeat,
)
from tidemill.telemetry.failpoints import failpoint

_REST_SECONDS = 5.0  # without work, before memory that the largest batch needed goes back

Deliver = Callable[[Plan, Lane, Mapping[str, Collection[Offset]] | None], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class StandingPlace:
    """Where the driver waits for its lanes, and what they prove it with. Travels with the function that tasks run."""

    host: str
    port: int
    token: str = field(repr=False)
    lanes: int


def stand(place: StandingPlace, plan: Plan, epoch: int, lane: int, deliver: Deliver) -> None:
    """Receipts go straight to the driver."""
    try:
        channel = call((place.host, place.port), bytes.fromhex(place.token), {"epoch": epoch, "lane": lane})
    except OSError:
        return  # the run is over, or the driver counts the lanes that come and says which one did not
    try:
        with heartbeat(channel):
            _serve(channel, plan, deliver)
    except OSError:
        return  # the driver hung up: the next epoch begins at its checkpoint
    finally:
        channel.close()
        release_memory()  # the worker may be idle now, or stand for another run


def _serve(channel: Channel, plan: Plan, deliver: Deliver) -> None:
    resting_since, released = time.monotonic(), True
    while frame := channel.receive(SILENT_DRIVER_SECONDS):
        kind, payload = frame
        if kind == END:
            return
        if kind != DELIVER and not released and time.monotonic() - resting_since > _REST_SECONDS:
            release_memory()
            released = True
        if kind == DELIVER:
            work: dict[str, Any] = orjson.loads(payload)
            plan = replace(plan, **work.get("changing", {}))
            try:
                results = deliver(plan, Lane(**work["lane"]), work["only"])
            except Carried as error:
                channel.send(FAILED, str(error).encode())
            except OSError as error:  # not one of the channel: the task fails, and Spark says why
                raise RuntimeError(f"a delivery failed: {error.strerror or type(error).__name__}") from error
            else:
                failpoint("worker.delivered")
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, results.schema) as writer:
                    writer.write_batch(results)
                channel.send(RESULTS, memoryview(sink.getvalue()))
            resting_since, released = time.monotonic(), False
