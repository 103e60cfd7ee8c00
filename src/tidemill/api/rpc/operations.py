"""Health, Control, Status and Metrics of operations.proto."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from tidemill.api.proto import operations_pb2 as wire
from tidemill.api.rpc.arguments import check_seconds
from tidemill.api.rpc.wiring import Caller, Door, find_name, needs
from tidemill.errors import AccessRefused, ConfigError, TooManyStreams
from tidemill.service.run.status import WAITING, PipelineStatus, State
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.lifecycle import RecoveryMode
from tidemill.service.server.managed import PipelineView
from tidemill.service.server.tokens import Role
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.service.snapshot.status import TableStatus

MAX_STREAMS = 64
CHECK_SECONDS = 10.0
"""How often the token of an open stream is looked at."""
_DRAIN_SECONDS, _MOST_DRAIN_SECONDS = 30.0, 3600.0
_PAGE = resource.getpagesize()
_MODES = {wire.SNAPSHOT_AGAIN: RecoveryMode.SNAPSHOT, wire.ACCEPT_GAP: RecoveryMode.ACCEPT_GAP}


class HealthService:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @needs(Role.VIEWER)
    def check(self, request: Any, caller: Caller) -> Any:
        view = self._control.view(find_name(self._control, request.pipeline, caller))
        serving = view.state in (State.RUNNING, WAITING)
        return wire.HealthReport(
            status=wire.HealthReport.SERVING if serving else wire.HealthReport.NOT_SERVING,
            stage=stage_of(view.status),
            stage_detail=view.state,
            error_detail=". ".join(filter(None, (view.error.get("what", ""), view.error.get("fix", "")))),
        )


class ControlService:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @needs(Role.OPERATOR)
    def pause(self, request: Any, caller: Caller) -> Any:
        return state_of(self._control.pause(self._name(request, caller), caller.cause(request.reason)))

    @needs(Role.OPERATOR)
    def resume(self, request: Any, caller: Caller) -> Any:
        return state_of(self._control.resume(self._name(request, caller), caller.cause(request.reason)))

    @needs(Role.OPERATOR)
    def drain_and_stop(self, request: Any, caller: Caller) -> Any:
        seconds = check_seconds(request.seconds, "seconds", most=_MOST_DRAIN_SECONDS) or _DRAIN_SECONDS
        return state_of(self._control.drain(self._name(request, caller), caller.cause(request.reason), seconds=seconds))

    @needs(Role.OPERATOR)
    def stop(self, request: Any, caller: Caller) -> Any:
        return state_of(self._control.stop(self._name(request, caller), caller.cause(request.reason)))

    @needs(Role.ADMIN, server=True)
    def reload_config(self, request: Any, caller: Caller) -> Any:
        done = self._control.reload(caller.cause(request.reason))
        return wire.ReloadReport(added=done.added, changed=done.changed, removed=done.removed)

    @needs(Role.OPERATOR)
    def start_snapshot(self, request: Any, caller: Caller) -> Any:
        if request.where and not caller.principal.role.covers(Role.ADMIN):
            raise AccessRefused(
                "a condition is SQL that runs at the source", where="where",
                fix="Leave it out, or use an admin's token.",
            )  # fmt: skip
        name = self._name(request, caller)
        tables = ", ".join(request.tables) or "all tables"
        self._control.audit(caller.cause(request.reason), "start snapshot", name, tables)
        begun = snapshot_requests.start(self._control.pipeline(name), list(request.tables), request.where)
        return wire.SnapshotReport(id=begun.id, state=begun.state, tables=[_table(each) for each in begun.tables])

    @needs(Role.OPERATOR)
    def recover(self, request: Any, caller: Caller) -> Any:
        mode = _MODES.get(request.mode)
        if mode is None:
            raise ConfigError("it is not said how", where="mode", fix="Give SNAPSHOT_AGAIN or ACCEPT_GAP.")
        found = self._control.recover(self._name(request, caller), mode, caller.cause(request.reason))
        done = found.done
        return wire.RecoveryReport(
            pipeline=found.pipeline, consequence=found.consequence, offset=done.offset, lost=done.lost,
            position_before=str(done.before), position_after=str(done.after), waiting=done.waiting,
            snapshot=done.snapshot,
        )  # fmt: skip

    def _name(self, request: Any, caller: Caller) -> str:
        return find_name(self._control, request.pipeline, caller)


class StatusService:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @needs(Role.VIEWER)
    def get_status(self, request: Any, caller: Caller) -> Any:
        view = self._control.view(find_name(self._control, request.pipeline, caller))
        report = wire.StatusReport(pipeline=view.name, state=view.state, stage=stage_of(view.status))
        if view.error:
            report.error.CopyFrom(error_of(view.error))
        status = view.status
        if status is None:
            return report
        report.began, report.confirmed_position = status.began, status.position
        report.current_position, report.log_bytes = status.captured, status.log_bytes
        report.pending_events, report.events = status.lag_events, status.events
        report.lag_seconds = status.lag_seconds
        if status.lag_bytes is not None:
            report.lag_bytes = status.lag_bytes
        for sink in status.sinks:
            report.sinks.add(
                sink=sink.id, state=sink.state, offset=sink.offset, lag_events=sink.lag_events,
                dead_letters=sink.dead_letters, error=sink.error,
            )  # fmt: skip
        report.tables.extend(_table(each) for each in status.tables)
        report.notices.extend(wire.Notice(**notice) for notice in status.notices)
        return report


class MetricsService:
    def __init__(self, control: ControlPlane, door: Door) -> None:
        self._control, self._door = control, door
        self._streams = 0

    @needs(Role.VIEWER)
    async def stream_metrics(self, request: Any, caller: Caller) -> AsyncIterator[Any]:
        name = find_name(self._control, request.pipeline, caller)
        if self._streams >= MAX_STREAMS:
            raise TooManyStreams(f"{MAX_STREAMS} streams of metrics are open", fix="Close some, or ask for GetStatus.")
        self._streams += 1
        try:
            clock = asyncio.get_running_loop().time
            due = checked = clock()
            while not self._control.stopping:
                if clock() >= due:
                    self._control.check_scope(caller.principal.scope, name)  # it may be another tenant's by now
                    yield _sample(self._control.view(name))
                    due = clock() + max(request.interval_ms or 1000, 100) / 1000
                await asyncio.sleep(min(due - clock(), CHECK_SECONDS))
                if clock() - checked >= CHECK_SECONDS:
                    checked = clock()
                    if await self._door.identify(caller.token) is None:
                        return
        finally:
            self._streams -= 1


def stage_of(status: PipelineStatus | None) -> Any:
    if status is None or status.stage == "init":
        return wire.INIT
    if any(table.state in ("copying", "catching_up", "paused") for table in status.tables):
        return wire.SNAPSHOT
    return wire.CDC if status.began or status.stage == "cdc" else wire.SETUP


def state_of(view: PipelineView) -> Any:
    return wire.PipelineState(pipeline=view.name, state=view.state, error=error_of(view.error) if view.error else None)


def error_of(error: Mapping[str, Any]) -> Any:
    return wire.ErrorDetail(**{name: error.get(name, "") for name in ("code", "what", "where", "fix")})


def timestamp(at: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(at)
    return made


def _sample(view: PipelineView) -> Any:
    status = view.status or PipelineStatus(view.name, State.CREATED)
    return wire.MetricsSample(
        at=timestamp(datetime.now(UTC)), state=view.state, events_per_second=status.events_per_second,
        lag_bytes=status.lag_bytes, lag_events=status.lag_events, lag_ms=status.lag_seconds * 1000,
        memory_bytes=_resident_bytes(), total_events=status.events, total_batches=status.batches,
        total_dead_letters=sum(sink.dead_letters for sink in status.sinks),
    )  # fmt: skip


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * _PAGE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # elsewhere: the most there ever was


def _table(table: TableStatus) -> Any:
    return wire.TableProgress(
        table=table.name, state=table.state, rows=table.rows, estimate=table.estimate, error=table.error
    )
