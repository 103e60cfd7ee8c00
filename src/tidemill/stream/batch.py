"""One lane of one batch, in a Spark worker: read its blocks, write them to every sink of a group, answer with receipts.

Nothing here raises on account of a sink: what went wrong is in its receipt, and the driver decides (loop.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import orjson

from tidemill.dlq import pack
from tidemill.errors import DeliveryError, Poisoned, Refused, TidemillError, is_retryable, to_data
from tidemill.log import LogReader
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Epoch, Receipt
from tidemill.model.position import Offset
from tidemill.retry import RetryPolicy
from tidemill.stream import lanes
from tidemill.stream.plan import Lane, LaneResult, Plan
from tidemill.stream.poison import dead_letters_of
from tidemill.stream.pool import POOL, Tools
from tidemill.telemetry.context import bind
from tidemill.telemetry.failpoints import failpoint

_RETRY = RetryPolicy(first=0.1, most=5.0, jitter=0.5)


def deliver(plan: Plan, lane: Lane, only: Mapping[str, Collection[Offset]] | None = None) -> list[LaneResult]:
    """An answer per sink.

    With `only`, the sinks that it names, without the events at those offsets: they are dead letters by now.
    """
    tools = POOL.tools(plan.group, plan.run, plan.log)
    share = _Share(tools.log, lane)
    delivery = Delivery(
        plan.pipeline, plan.source, lane.start, lane.end, lane.lane, lane.lanes, share.blocks, by=lane.by,
        epoch=Epoch(plan.version, plan.since) if plan.since else None,
    )  # fmt: skip
    chosen = [spec for spec in plan.sinks if only is None or spec[1]["id"] in only]

    def write(spec: tuple[str, dict[str, Any]]) -> LaneResult:
        sink = spec[1]["id"]
        with bind(pipeline=plan.pipeline, stage="deliver", sink=sink):
            return _write(tools, *spec, delivery, plan, only[sink] if only else ())

    if len(chosen) == 1:
        return [write(chosen[0])]
    with ThreadPoolExecutor(len(chosen) or 1, thread_name_prefix="sink") as side_by_side:
        return list(side_by_side.map(write, chosen))


def warm_up() -> None:
    """Loads what a first delivery would import."""
    from tidemill.formats.json import JsonFormat

    JsonFormat()


class _Share:
    """A lane's blocks, read as they are asked for and again for each that asks (threads of several sinks may)."""

    def __init__(self, log: LogReader, lane: Lane) -> None:
        self._log = log
        self._lane = lane
        self._refs = log.refs(lane.start, lane.end) if lane.start < lane.end else []

    def blocks(self) -> Iterator[Block]:
        at = self._lane
        for ref in self._refs:
            if not lanes.may_have(ref, at.lane, at.lanes, at.by):
                continue
            block = lanes.share(self._log.read(ref), ref, at.lane, at.lanes, at.by)
            if block is not None:
                yield block


def _write(
    tools: Tools, kind: str, config: dict[str, Any], whole: Delivery, plan: Plan, left_out: Collection[Offset]
) -> LaneResult:
    """Tries again while that is worth it. Only the error's own words leave this process, never a row's values.

    Poison ends it at once: the letters must be stored before the rest is written. A sink that has the rest may say of a
    replay that it has everything, and nobody would hear of the poison again (invariant 7).
    """
    name = str(config["id"])
    delivery = whole.without(left_out) if left_out else whole
    tries = replace(_RETRY, seconds=plan.retry_seconds).begin()
    while True:
        try:
            failpoint("worker.writing")
            receipt = tools.sink(kind, config).write(delivery)
            failpoint("worker.written")
            return LaneResult(replace(receipt, sink=name, lane=delivery.lane, retries=tries.taken))
        except Exception as error:  # noqa: BLE001  sinks bring errors of any library; the table in errors.py judges
            tools.discard(name)
            problem = _ours(error)
            if isinstance(error, Poisoned) and plan.dead_letters:
                try:
                    dead_letters = dead_letters_of(error, delivery, name, before=len(left_out))
                    return LaneResult(_failed(name, delivery, problem, retry=True), pack(dead_letters))
                except TidemillError as hopeless:
                    problem = hopeless
            retry = is_retryable(problem)
            if not retry or not tries.pause():
                if isinstance(problem, Poisoned):
                    problem.fix = f"{problem.fix}\n{_DLQ}".lstrip()
                return LaneResult(_failed(name, delivery, problem, retry=retry))


_DLQ = "To keep such events apart and go on with the others, add `dlq: {}` to the pipeline's spec."


def _failed(sink: str, delivery: Delivery, error: TidemillError, *, retry: bool) -> Receipt:
    packed = orjson.dumps(to_data(error)).decode()
    return Receipt(sink, delivery.lane, error=str(error), retryable=retry, error_data=packed)


def _ours(error: Exception) -> TidemillError:
    """Our own errors are written for people; of others only the kind is sure to hold no row's values."""
    if isinstance(error, TidemillError):
        return error
    words = f"{type(error).__module__}.{type(error).__qualname__}" + (
        f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
    )
    return DeliveryError(words) if is_retryable(error) else Refused(words)
