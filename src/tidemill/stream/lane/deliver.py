"""One lane of one batch, in a Spark worker: read its blocks, run the processors over them, write what comes of it to
every sink of a group, return receipts.

Nothing here raises on account of a sink or a processor: what went wrong is in its receipt, and the driver decides
(loop.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import orjson

from tidemill import registry
from tidemill.dlq import pack
from tidemill.errors import Poisoned, StreamError, TidemillError, is_retryable, to_data
from tidemill.log import LogReader
from tidemill.log.copying import EVERY, find_excused
from tidemill.log.requeued import is_kept_back
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Epoch, Receipt
from tidemill.model.position import Offset
from tidemill.model.quarantine import Quarantine
from tidemill.model.table import Table
from tidemill.retry import RetryPolicy
from tidemill.stream.batch import lanes
from tidemill.stream.batch.failures import ours
from tidemill.stream.batch.plan import Lane, LaneResult, Plan
from tidemill.stream.lane.chain import EventFailure
from tidemill.stream.lane.later import follow_changes
from tidemill.stream.lane.poison import dead_letters_of
from tidemill.stream.lane.pool import POOL, Tools
from tidemill.stream.lane.processing import process_share
from tidemill.stream.lane.sensing import LaneSensor
from tidemill.stream.lane.spool import Spool
from tidemill.stream.lane.trace import time_reads, time_step, time_write
from tidemill.stream.lane.views import Structures, seen_by, structures_seen
from tidemill.telemetry.context import bind
from tidemill.telemetry.failpoints import failpoint
from tidemill.telemetry.spans import LaneSpans

_RETRY = RetryPolicy(first=0.1, most=5.0, jitter=0.5)


def deliver(
    plan: Plan, lane: Lane, only: Mapping[str, Collection[Offset]] | None = None, sensor: LaneSensor | None = None,
    spans: LaneSpans | None = None,
) -> list[LaneResult]:  # fmt: skip
    """A result per sink.

    With `only`, the sinks that it names, without the events at those offsets: they are dead letters by now.
    The `sensor` sees the blocks that sinks read; `spans` note when what was done.
    """
    tools = POOL.tools(plan.group, plan.run, plan.log)
    try:
        return _deliver(tools, plan, lane, only, sensor, spans)
    finally:
        tools.log.unmap()


def _deliver(
    tools: Tools, plan: Plan, lane: Lane, only: Mapping[str, Collection[Offset]] | None, sensor: LaneSensor | None,
    spans: LaneSpans | None,
) -> list[LaneResult]:  # fmt: skip
    share = _Share(tools.log, lane, plan.quarantines, sensor)
    blocks = share.blocks
    if spans is not None:
        spans.describe(tables=share.count_tables())
        blocks = time_reads(blocks, spans)
    delivery = Delivery(
        plan.pipeline, plan.source, lane.start, lane.end, lane.lane, lane.lanes, blocks, by=lane.by,
        epoch=Epoch(plan.version, plan.since) if plan.since else None,
    )  # fmt: skip
    chosen = [spec for spec in plan.sinks if only is None or spec[1]["id"] in only]
    if not plan.processors:
        if structures := share.find_changed():
            _forget_tables(tools, chosen)
        return _to_sinks(tools, chosen, delivery, delivery, plan, only, structures=structures, spans=spans)
    with Spool() as spool, bind(pipeline=plan.pipeline):
        try:
            failpoint("worker.processing")
            with time_step("lane.process", spans):
                stored = {offset for offsets in (only or {}).values() for offset in offsets}
                seen = seen_by(delivery, plan.shared_views, stored)
                passed = process_share(tools, plan, seen, spool, stored)
            failpoint("worker.processed")
        except Poisoned as poison:  # of a table whose columns keep their types
            return [_bury(config["id"], poison, delivery, plan, before=len(stored)) for _, config in chosen]
        except Exception as error:  # noqa: BLE001  processors run anybody's code; the table in errors.py judges
            tools.discard_processors()
            problem = ours(error)
            retry = is_retryable(problem)
            return [LaneResult(_failed_receipt(config["id"], delivery, problem, retry=retry)) for _, config in chosen]
        if passed.learned:
            waits = StreamError("columns that a processor gives are being learned")
            results = [LaneResult(_failed_receipt(config["id"], delivery, waits, retry=True)) for _, config in chosen]
        else:
            made = replace(delivery, blocks=spool.blocks)
            results = _to_sinks(tools, chosen, made, delivery, plan, only, passed.failures, spans=spans)
    return [replace(one, processed=passed.counts, learned=passed.learned) for one in results[:1]] + results[1:]


def _bury(sink: str, poison: Poisoned, captured: Delivery, plan: Plan, *, before: int) -> LaneResult:
    """Before any sink was given the events: they are dead letters of all."""
    problem: TidemillError = poison
    if plan.dead_letters:
        try:
            packed = pack(dead_letters_of(poison, captured, sink, before=before))
            return LaneResult(_failed_receipt(sink, captured, poison, retry=True), packed)
        except TidemillError as hopeless:
            problem = hopeless
    else:
        problem.fix = f"{problem.fix}\n{_DLQ}".lstrip()
    return LaneResult(_failed_receipt(sink, captured, problem, retry=False))


def _forget_tables(tools: Tools, chosen: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """The driver has changed tables since this worker looked at them: a sink that keeps tables looks again."""
    for kind, config in chosen:
        if registry.load("sinks", kind).capabilities.schema_changes:
            tools.discard(str(config["id"]))


def _to_sinks(
    tools: Tools, chosen: Sequence[tuple[str, dict[str, Any]]], delivery: Delivery, captured: Delivery, plan: Plan,
    only: Mapping[str, Collection[Offset]] | None, failures: Mapping[Offset, EventFailure] | None = None,
    structures: Structures | None = None, spans: LaneSpans | None = None,
) -> list[LaneResult]:  # fmt: skip
    """`captured` is the delivery as it came, before processors, which failed on some of it."""

    def write(spec: tuple[str, dict[str, Any]]) -> LaneResult:
        sink = spec[1]["id"]
        left_out = only[sink] if only else ()
        with bind(pipeline=plan.pipeline, stage="deliver", sink=sink):
            if new := {at: why for at, why in (failures or {}).items() if at not in left_out}:
                return _failed_events(sink, captured, new, before=len(left_out))
            given = (tools, *spec, delivery, captured, plan, left_out, structures or {})
            if spans is None:
                return _write(*given)
            with time_write(spec[0], sink, spans) as done:
                done.append(_write(*given))
            return done[0]

    if len(chosen) == 1:
        return [write(chosen[0])]
    with ThreadPoolExecutor(len(chosen) or 1, thread_name_prefix="sink") as side_by_side:
        return list(side_by_side.map(write, chosen))


def _failed_events(
    sink: str, captured: Delivery, failures: Mapping[Offset, EventFailure], *, before: int
) -> LaneResult:
    """Dead letters of what processors failed on: nothing is written before the driver has them."""
    poison = Poisoned({at: f"processor {why.processor}: {why.reason}" for at, why in failures.items()})
    stages = {at: f"processor:{why.processor}" for at, why in failures.items()}
    try:
        dead_letters = dead_letters_of(poison, captured, sink, before=before, stages=stages)
    except TidemillError as hopeless:
        return LaneResult(_failed_receipt(sink, captured, hopeless, retry=False))
    return LaneResult(_failed_receipt(sink, captured, poison, retry=True), pack(dead_letters))


def warm_up() -> None:
    """Loads what a first delivery would import."""
    from tidemill.formats.json import JsonFormat

    JsonFormat()


class _Share:
    """A lane's blocks, read as they are asked for and again for each that asks (threads of several sinks may)."""

    def __init__(
        self, log: LogReader, lane: Lane, quarantines: Sequence[Quarantine] = (), sensor: LaneSensor | None = None
    ) -> None:
        self._log = log
        self._sensor = sensor
        self._lane = lane
        self._quarantines = quarantines
        self._refs = log.refs(lane.start, lane.end) if lane.start < lane.end else []

    def count_tables(self) -> int:
        """Of the whole batch: a lane asks for the blocks of all, and takes its keys out of each."""
        return len({ref.table for ref in self._refs})

    def find_changed(self) -> dict[str, list[tuple[Offset, Table]]]:
        """The tables that have several structures in the batch, each with the offset from which on. As a rule the index
        tells that there is none; a column may also have been replaced by its like, which only the blocks tell."""
        if not self._may_change():
            return {}
        found: dict[str, list[tuple[Offset, Table]]] = {}
        for ref in self._refs:
            if is_kept_back(ref, self._quarantines):
                continue
            table, known = self._log.read(ref).table, found.setdefault(ref.table, [])
            if table.columns and (not known or known[-1][1].lineage != table.lineage):
                known.append((ref.first, table))
        return {name: known for name, known in found.items() if len(known) > 1}

    def _may_change(self) -> bool:
        if any(ref.barrier for ref in self._refs):
            changed = Barrier.SCHEMA_CHANGE | Barrier.UNNAMED
            if any(entry.barrier & changed for entry in self._log.between(self._lane.start, self._lane.end)):
                return True
        return len({(ref.table, ref.fingerprint) for ref in self._refs}) > len({ref.table for ref in self._refs})

    def blocks(self) -> Iterator[Block]:
        at = self._lane
        for number, ref in enumerate(self._refs):
            if not lanes.may_have(ref, at.lane, at.lanes, at.by) or is_kept_back(ref, self._quarantines):
                continue
            block = lanes.share(self._log.read(ref), ref, at.lane, at.lanes, at.by)
            if self._sensor is not None:
                self._sensor.observe(number, block)
            if block is not None:
                yield block


def _write(
    tools: Tools, kind: str, config: dict[str, Any], whole: Delivery, captured: Delivery, plan: Plan,
    left_out: Collection[Offset], structures: Structures,
) -> LaneResult:  # fmt: skip
    """Tries again while that is worth it. Only the error's own words leave this process, never a row's values.

    Poison ends it at once: the records must be stored before the rest is written. A sink that has the rest may say of a
    replay that it has everything, and nobody would hear of the poison again (invariant 7).
    """
    name = str(config["id"])
    delivery = whole.without(left_out) if left_out else whole
    if name in plan.views and not plan.processors:  # else processors were given what is seen
        delivery = seen_by(delivery, plan.views[name])
        structures = structures_seen(structures, plan.views[name])
    tries = replace(_RETRY, seconds=plan.retry_seconds).begin()
    while True:
        try:
            failpoint("worker.writing")
            sink = tools.sink(kind, config)
            receipt = sink.write(follow_changes(delivery, structures, sink.capabilities.schema_changes))
            failpoint("worker.written")
            return LaneResult(replace(receipt, sink=name, lane=delivery.lane, retries=tries.taken))
        except Exception as error:  # noqa: BLE001  sinks bring errors of any library; the table in errors.py judges
            tools.discard(name)
            problem = ours(error)
            if isinstance(error, Poisoned) and error.lacking:
                copying = tools.log.read_copying()
                if late := find_excused(copying, delivery, error.lacking):
                    delivery = delivery.without(late)
                    continue
                if EVERY in copying:
                    problem = StreamError(_UNKNOWN, where=error.where, fix=_UNKNOWN_FIX)
            if isinstance(problem, Poisoned) and plan.dead_letters:
                try:
                    given = captured.without(left_out) if left_out else captured
                    dead_letters = dead_letters_of(problem, given, name, before=len(left_out))
                    return LaneResult(_failed_receipt(name, delivery, problem, retry=True), pack(dead_letters))
                except TidemillError as hopeless:
                    problem = hopeless
            retry = is_retryable(problem)
            if not retry or not tries.pause():
                if isinstance(problem, Poisoned):
                    problem.fix = f"{problem.fix}\n{_DLQ}".lstrip()
                return LaneResult(_failed_receipt(name, delivery, problem, retry=retry))


_UNKNOWN = "an update lacks columns of a row that is not there, and a snapshot that has begun may bring it"
_UNKNOWN_FIX = "It is tried again when the snapshot knows its tables; `tidemill snapshot status` says if it is paused."
_DLQ = "To keep such events apart and go on with the others, add `dlq: {}` to the pipeline's spec."


def _failed_receipt(sink: str, delivery: Delivery, error: TidemillError, *, retry: bool) -> Receipt:
    packed = orjson.dumps(to_data(error)).decode()
    return Receipt(sink, delivery.lane, error=str(error), retryable=retry, error_data=packed)
