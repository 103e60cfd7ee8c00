"""Flows and Checkpoints of flows.proto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tidemill.api.proto import flows_pb2 as wire
from tidemill.api.rpc.arguments import read_time
from tidemill.api.rpc.operations import error_of, state_of
from tidemill.api.rpc.wiring import Caller, find_name, needs
from tidemill.config.posted import read_posted
from tidemill.errors import ConfigError
from tidemill.model.delivery import Checkpoint
from tidemill.service.maintenance import moves
from tidemill.service.position import positions
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.managed import PipelineView
from tidemill.service.server.tokens import Role

_PAGE, _MOST = 100, 1000


class FlowsService:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @needs(Role.VIEWER)
    def list(self, request: Any, caller: Caller) -> Any:
        labels = dict(request.labels)
        found = [
            each for each in self._control.views(caller.principal.scope)
            if each.name > request.after and request.state in ("", each.state)
            and labels.items() <= dict(each.labels).items()
        ]  # fmt: skip
        limit = min(request.limit or _PAGE, _MOST)
        more = found[limit - 1].name if len(found) > limit else ""
        return wire.ListFlowsReply(flows=[_flow(each) for each in found[:limit]], next_after=more)

    @needs(Role.VIEWER)
    def get(self, request: Any, caller: Caller) -> Any:
        return _flow(self._control.view(find_name(self._control, request.pipeline, caller)))

    @needs(Role.ADMIN)
    def create(self, request: Any, caller: Caller) -> Any:
        document = read_posted(request.document, json=request.document.lstrip().startswith("{"))
        made = self._control.create(
            document, caller.cause(request.reason), start=not request.leave_stopped, scope=caller.principal.scope
        )
        return _flow(made)

    @needs(Role.ADMIN)
    def update(self, request: Any, caller: Caller) -> Any:
        patch = read_posted(request.merge_patch_json, json=True)
        name = find_name(self._control, request.pipeline, caller)
        cause, scope = caller.cause(request.reason), caller.principal.scope
        return _flow(self._control.patch(name, patch, cause, expect=_expected_version(request), scope=scope))

    @needs(Role.ADMIN)
    def delete(self, request: Any, caller: Caller) -> Any:
        if not request.pipeline:
            raise ConfigError("it is not said which pipeline", where="pipeline", fix="Name it. Nothing was done.")
        name = find_name(self._control, request.pipeline, caller)
        self._control.delete(name, caller.cause(request.reason), expect=_expected_version(request))
        return wire.DeleteFlowReply()

    @needs(Role.OPERATOR)
    def start(self, request: Any, caller: Caller) -> Any:
        name = find_name(self._control, request.pipeline, caller)
        return state_of(self._control.start(name, caller.cause(request.reason)))

    @needs(Role.OPERATOR)
    def restart(self, request: Any, caller: Caller) -> Any:
        name = find_name(self._control, request.pipeline, caller)
        return state_of(self._control.restart(name, caller.cause(request.reason)))


class CheckpointsService:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @needs(Role.VIEWER)
    def get(self, request: Any, caller: Caller) -> Any:
        pipeline = self._control.pipeline(find_name(self._control, request.pipeline, caller))
        return wire.CheckpointsReport(
            checkpoint=_checkpoint(positions.checkpoint_of(pipeline)),
            sinks=[
                wire.SinkCheckpointNote(sink=at.sink, own=at.own, checkpoint=_checkpoint(at.checkpoint))
                for at in positions.sink_positions(pipeline)
            ],
        )

    @needs(Role.OPERATOR)
    def set(self, request: Any, caller: Caller) -> Any:
        name = find_name(self._control, request.pipeline, caller)
        pipeline, to = self._control.pipeline(name), request.WhichOneof("to")
        if to is None:
            raise ConfigError("it is not said where to", where="to", fix="Give `offset` or `since`.")
        intended = moves.plan(
            pipeline, offset=request.offset if to == "offset" else None,
            since=read_time(request.since, "since").isoformat() if to == "since" else None,
            position=None, sink=request.sink or None,
        )  # fmt: skip
        stored = None
        if not request.dry_run:
            cause = caller.cause(request.reason)
            self._control.audit(cause, "set checkpoint", name, intended.consequence)
            stored = moves.move(pipeline, intended, note=f"{cause.actor} {cause.reason}".strip())
        return wire.SetCheckpointReply(
            consequence=intended.consequence, replayed=intended.replayed, skipped=intended.skipped,
            checkpoint=_checkpoint(stored),
        )  # fmt: skip


def _flow(view: PipelineView) -> Any:
    return wire.Flow(
        name=view.name, state=view.state, version=view.version, labels=view.labels, tenant=view.tenant or "",
        spec_json=orjson.dumps(view.spec, default=str).decode() if view.spec is not None else "",
        error=error_of(view.error) if view.error else None,
    )  # fmt: skip


def _expected_version(request: Any) -> Sequence[str] | None:
    return [request.expect_version] if request.expect_version else None


def _checkpoint(checkpoint: Checkpoint | None) -> Any:
    if checkpoint is None:
        return None
    return wire.CheckpointNote(
        offset=checkpoint.offset, position=str(checkpoint.position), version=checkpoint.version,
        saved_at=str(checkpoint.saved_at), note=checkpoint.note,
    )  # fmt: skip
