"""Runs of flows.proto: what `/pipelines/{name}/runs` is over REST."""

from __future__ import annotations

from typing import Any

from tidemill.api.proto import flows_pb2 as wire
from tidemill.api.rpc.operations import error_of
from tidemill.api.rpc.wiring import Caller, find_name, needs
from tidemill.service.schedule.values import ScheduledRun
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.tokens import Role

_PAGE, _MOST = 20, 200


class RunsService:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @needs(Role.VIEWER)
    def list(self, request: Any, caller: Caller) -> Any:
        name = find_name(self._control, request.pipeline, caller)
        found = self._control.runs(name, min(request.limit or _PAGE, _MOST))
        return wire.ListRunsReply(runs=[_run(each) for each in found])

    @needs(Role.OPERATOR)
    def run_now(self, request: Any, caller: Caller) -> Any:
        name = find_name(self._control, request.pipeline, caller)
        return _run(self._control.run_now(name, caller.cause(request.reason)))


def _run(run: ScheduledRun) -> Any:
    return wire.Run(
        id=run.id, pipeline=run.pipeline, state=str(run.state), slot=run.slot, actor=run.actor, queued=run.queued,
        started=run.started, ended=run.ended, events=run.events, attempts=run.attempts, recoveries=run.recoveries,
        error=error_of(run.error) if run.error else None,
    )  # fmt: skip
