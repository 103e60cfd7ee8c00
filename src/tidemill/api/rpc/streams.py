"""Streams of flows.proto: the queue of a pipeline's pgstream sink, for consumers without a database driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

from tidemill.api.proto import flows_pb2 as wire
from tidemill.api.rpc.arguments import check_lsn, check_seconds, check_text, check_token, read_time
from tidemill.api.rpc.operations import timestamp
from tidemill.api.rpc.wiring import Caller, find_name, needs
from tidemill.errors import ConfigError
from tidemill.service.pgstream_queue import Client, Group, Message, open_queue_of
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.tokens import Role

_MESSAGES, _MOST_MESSAGES = 10, 10_000
_BYTES, _MOST_BYTES = 3 << 20, 64 << 20  # a client takes 4 MiB, unless it is told otherwise
_MOST_WAIT_SECONDS = 20.0
_EXTEND_SECONDS, _MOST_SECONDS = 30.0, 30 * 86_400.0
_LONGEST_NAME, _LONGEST_REASON = 1000, 10_000


class StreamsService:
    """Operators only: events have values."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @needs(Role.OPERATOR, pool="pulls")
    def pull(self, request: Any, caller: Caller) -> Any:
        """The group is made if it is missing. Nothing is claimed for a consumer that has hung up."""
        at = request.stream
        visibility = check_seconds(request.visibility_seconds, "visibility_seconds", most=_MOST_SECONDS)
        wait = check_seconds(request.wait_seconds, "wait_seconds", most=_MOST_SECONDS)
        with self._queue(at, caller) as client:
            client.upgrade()
            start: Literal["earliest", "latest"] = "latest" if request.from_latest else "earliest"
            group = client.group(at.stream, at.group, start=start, ordered=request.ordered)
            found = group.pull(
                min(request.limit or _MESSAGES, _MOST_MESSAGES),
                visibility_seconds=visibility or None,
                wait_seconds=min(wait, _MOST_WAIT_SECONDS),
                consumer=caller.principal.actor,
                max_bytes=min(request.max_bytes or _BYTES, _MOST_BYTES),
                hung_up=caller.gone.is_set,
            )
        return wire.PullReply(token=found[0].token if found else "", messages=[_message(each) for each in found])

    @needs(Role.OPERATOR, pool="looks")
    def ack(self, request: Any, caller: Caller) -> Any:
        return self._settle(request, caller, "ack")

    @needs(Role.OPERATOR, pool="looks")
    def nack(self, request: Any, caller: Caller) -> Any:
        reason = check_text(request.reason, "reason", longest=_LONGEST_REASON)
        return self._settle(request, caller, "nack", _span(request.seconds), reason or None)

    @needs(Role.OPERATOR, pool="looks")
    def extend(self, request: Any, caller: Caller) -> Any:
        return self._settle(request, caller, "extend", _span(request.seconds or _EXTEND_SECONDS))

    @needs(Role.OPERATOR)
    def replay(self, request: Any, caller: Caller) -> Any:
        """Gives messages again, also those that were acked."""
        begin = request.WhichOneof("from")
        with self._queue(request.stream, caller) as client:
            group = Group(client, request.stream.stream, request.stream.group)
            match begin:
                case "dead":
                    count = group.revive()
                case "lsn":
                    count = group.replay(lsn=check_lsn(request.lsn))
                case "since":
                    count = group.replay(time=read_time(request.since, "since"))
                case "offset":
                    count = group.replay(offset=request.offset)
                case _:
                    raise ConfigError(
                        "a replay begins at one place", where="from", fix="Give lsn, since, offset or dead."
                    )
        return wire.ReplayStreamReply(messages=count)

    def _settle(self, request: Any, caller: Caller, how: Literal["ack", "nack", "extend"], *more: Any) -> Any:
        with self._queue(request.stream, caller) as client:
            group = Group(client, request.stream.stream, request.stream.group)
            done = group.settle(how, check_token(request.token), list(request.ids) or None, *more)
        return wire.SettleReply(done=done.done, lost=done.lost)

    @contextmanager
    def _queue(self, at: Any, caller: Caller) -> Iterator[Client]:
        if not at.stream or not at.group:
            raise ConfigError("a consumer names a stream and its group", where="stream", fix="Give both.")
        for name, value in (("stream", at.stream), ("group", at.group), ("sink", at.sink)):
            check_text(value, name, longest=_LONGEST_NAME)
        pipeline = self._control.pipeline(find_name(self._control, at.pipeline, caller))
        own = None if caller.principal.scope.is_whole else at.stream
        with open_queue_of(pipeline, at.sink or None, own_stream=own) as client:
            yield client


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=check_seconds(seconds, "seconds", most=_MOST_SECONDS))


def _message(message: Message) -> Any:
    return wire.StreamMessage(
        id=message.id, attempts=message.attempts, event_id=message.event_id, op=message.op, table=message.table,
        offset=message.offset, key=message.key or b"", payload=message.payload, content_type=message.content_type,
        commit_time=timestamp(message.commit_time) if message.commit_time else None,
    )  # fmt: skip
