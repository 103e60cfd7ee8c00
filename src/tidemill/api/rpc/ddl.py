"""DDL of flows.proto: what `tidemill ddl` does."""

from __future__ import annotations

from typing import Any

from tidemill.api.proto import flows_pb2 as wire
from tidemill.api.rpc.wiring import Caller, find_name, needs
from tidemill.contracts.schema_change_store import Decision, StoredChange
from tidemill.service.schema import changes
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.tokens import Role

_PAGE, _MOST = 100, 1000


class DDLService:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @needs(Role.VIEWER)
    def list(self, request: Any, caller: Caller) -> Any:
        limit = min(request.limit or _PAGE, _MOST)
        pipeline, before = self._control.pipeline(self._name(request, caller)), request.before or None
        found = changes.list_changes(pipeline, limit + 1, before=before)
        reply = wire.ListChangesReply(changes=[_change(each) for each in found[:limit]])
        if len(found) > limit:
            reply.next_before = found[limit - 1].number
        return reply

    @needs(Role.VIEWER)
    def get(self, request: Any, caller: Caller) -> Any:
        return _change(changes.show_change(self._control.pipeline(self._name(request, caller)), request.number))

    @needs(Role.OPERATOR)
    def plan(self, request: Any, caller: Caller) -> Any:
        reply = wire.PlanReply()
        for each in changes.plan_changes(self._control.pipeline(self._name(request, caller))):
            planned = reply.changes.add(
                offset=each.offset, table=each.table, kinds=each.kinds, text=each.text, action=each.action
            )
            planned.sinks.extend(_sinks(each.plans))
        return reply

    @needs(Role.OPERATOR)
    def approve(self, request: Any, caller: Caller) -> Any:
        return self._decide(request, caller, Decision.APPROVED)

    @needs(Role.OPERATOR)
    def reject(self, request: Any, caller: Caller) -> Any:
        return self._decide(request, caller, Decision.REJECTED)

    @needs(Role.OPERATOR)
    def apply(self, request: Any, caller: Caller) -> Any:
        return self._decide(request, caller, Decision.MADE)

    def _decide(self, request: Any, caller: Caller, decision: Decision) -> Any:
        pipeline, cause = self._control.pipeline(self._name(request, caller)), caller.cause(request.reason)
        return _change(changes.decide(pipeline, request.number, decision, cause, self._control.store))

    def _name(self, request: Any, caller: Caller) -> str:
        return find_name(self._control, request.pipeline, caller)


def _change(change: StoredChange) -> Any:
    made = wire.SchemaChange(
        number=change.number, status=str(change.status), table=change.table, kinds=change.kinds, offset=change.offset,
        position=str(change.position), seen_at=change.seen_at, text=change.text, decided_by=change.actor,
        decided_at=change.decided_at, reason=change.reason,
    )  # fmt: skip
    made.sinks.extend(_sinks(change.outcomes))
    return made


def _sinks(outcomes: Any) -> list[Any]:
    return [
        wire.SinkPlan(sink=sink, statements=each.statements, status=each.status, error=each.error)
        for sink, each in sorted(outcomes.items())
    ]
