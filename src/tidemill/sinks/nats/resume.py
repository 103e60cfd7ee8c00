"""What the stream holds already: its last message says how far this sink came, whatever was killed when.

Every message carries `Tidemill-Event: <pipeline>/<sink>:<offset>`, with `.<sub>` after it where processors made several
of one event. Offset and sub together are its place here. With `exclusive` nobody else publishes to the
stream, so sequence order is that of places, and everything up to the last message's place is there. It is skipped only
when the messages are seen to be these very events; else the state was lost or another pipeline writes here, and the
sink stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.derived import sub_ordinals
from tidemill.model.position import Offset
from tidemill.model.template import Template
from tidemill.sinks._shared.resume_scheme import ResumeScheme

if TYPE_CHECKING:
    from tidemill.sinks.nats import NatsConfig
    from tidemill.sinks.nats.client import NatsClient

EVENT = "Tidemill-Event"
REACHED = "Tidemill-Reached-Id"  # of a dead letter that was sent again: the event before it in the log's order


@dataclass(frozen=True, slots=True)
class End:
    """The stream's last sequence, and the place and identity of the event it holds (-1 if it holds none)."""

    sequence: int
    place: int = -1
    identity: str = ""


def places(block: Block) -> list[int]:
    """Of each row, in one number that rises as events do."""
    offsets, subs = block.offsets().tolist(), sub_ordinals(block)
    if subs is None:
        return [offset << 16 for offset in offsets]
    return [offset << 16 | sub for offset, sub in zip(offsets, subs.tolist(), strict=True)]


def offset_of(place: int) -> Offset:
    return place >> 16


def owner(delivery: Delivery, sink: str) -> str:
    return f"{delivery.pipeline}/{sink}"


def place_header(mine: str, place: int) -> dict[str, str]:
    """The header that tells a later worker which event a message is."""
    offset, sub = place >> 16, place & 0xFFFF
    return {EVENT: f"{mine}:{offset}.{sub}" if sub else f"{mine}:{offset}"}


async def ensure(js: Any, config: NatsConfig, subject: Template) -> Any:
    """The stream's description; created if it is missing and may be."""
    from nats.js.api import StorageType, StreamConfig
    from nats.js.errors import NotFoundError

    try:
        return await js.stream_info(config.stream)
    except NotFoundError as error:
        if not config.create_stream:
            raise Refused(
                f'there is no stream "{config.stream}"',
                where=config.where,
                fix="Create it, or set create_stream: true.",
            ) from error
    wanted = StreamConfig(
        name=config.stream, subjects=subjects(config, subject), storage=StorageType.FILE,
        num_replicas=config.replicas, duplicate_window=config.duplicate_window_seconds,
    )  # fmt: skip
    return await js.add_stream(wanted)


def subjects(config: NatsConfig, subject: Template) -> list[str]:
    """What a stream made by the sink listens to: the template up to its first variable part."""
    if config.subjects:
        return list(config.subjects)
    if subject.is_literal:
        return [subject.text]
    fixed = subject.text.partition("${")[0].rpartition(".")[0]
    if not fixed:
        raise Refused(
            f'no subjects of a stream follow from "{subject.text}"', where=config.where,
            fix="Give subjects, or begin the template with a fixed part: cdc.${source.table}.",
        )  # fmt: skip
    return [f"{fixed}.>"]


async def end(js: Any, config: NatsConfig, delivery: Delivery, info: Any) -> End:
    """Asks the stream for its last message; `Refused` if that is somebody else's."""
    from nats.js.errors import NotFoundError

    last = int(info.state.last_seq)
    if not info.state.messages:
        return End(last)
    try:
        message = await js.get_msg(config.stream, subject=">")
    except NotFoundError:  # consumed or purged since
        return End(last)
    place, identity = _event(message, owner(delivery, config.id))
    if place < 0:
        raise Refused(
            f'the last message of stream "{config.stream}" is not of this sink', where=config.where,
            fix="Give the sink a stream of its own, or set exclusive: false: then a replay is recognised only within "
            "the stream's duplicate window.",
        )  # fmt: skip
    return End(max(last, int(message.seq)), place, identity)


async def confirm(js: Any, config: NatsConfig, delivery: Delivery, info: Any, first: tuple[int, str]) -> None:
    """`Refused` unless the stream holds the event of this place: found by halving, for places rise with the
    sequence."""
    from nats.js.errors import NotFoundError

    low, high = int(info.state.first_seq), int(info.state.last_seq)
    while low <= high:
        middle = (low + high) // 2
        try:
            message = await js.get_msg(config.stream, seq=middle, next=True, subject=">")
        except NotFoundError:
            high = middle - 1
            continue
        place, identity = _event(message, owner(delivery, config.id))
        if place == first[0]:
            if identity == first[1]:
                return
            break
        low, high = (int(message.seq) + 1, high) if place < first[0] else (low, middle - 1)
    raise other_log(config, first[0])


def other_log(config: NatsConfig, place: int) -> Refused:
    return Refused(
        f'stream "{config.stream}" is beyond offset {offset_of(place)}, but does not show that it holds these events',
        where=config.where,
        fix="If the state directory was lost or reset, offsets count anew: give the sink a new stream, or purge this "
        "one once its consumers are done (nats stream purge).",
    )


def _event(message: Any, mine: str) -> tuple[int, str]:
    headers = message.headers or {}
    written, _, at = headers.get(EVENT, "").rpartition(":")
    offset, _, sub = at.partition(".")
    identity = headers.get(REACHED) or headers.get("Nats-Msg-Id", "")
    if written != mine or not offset.isdigit() or not (sub or "0").isdigit():
        return -1, ""
    return int(offset) << 16 | int(sub or 0), identity


Message = tuple[int, str, bytes, dict[str, str]]
"""Place, subject, payload and headers."""


class NatsResumption:
    """One delivery. Messages up to the place of the stream's last one are left out: they are seen to be the same by
    that one, or by the first of them, which `note` looks for. Each message carries its own note (`place_header`)."""

    def __init__(self, client: NatsClient, config: NatsConfig, delivery: Delivery, info: Any, end: End) -> None:
        self.skipped = 0
        self._client, self._config, self._delivery, self._info, self._end = client, config, delivery, info, end
        self._first: tuple[int, str] | None = None  # of those that were left out
        self._seen = False

    def fresh(self, messages: list[Message]) -> list[Message] | None:
        """Of messages in the order of their places."""
        if self._delivery.redelivered:
            return messages
        fresh = [message for message in messages if message[0] > self._end.place]
        for place, _, _, headers in messages[: len(messages) - len(fresh)]:
            identity = headers["Nats-Msg-Id"]
            self._first = self._first or (place, identity)
            if place == self._end.place:
                if identity != self._end.identity:
                    raise other_log(self._config, place)
                self._seen = True
        self.skipped += len(messages) - len(fresh)
        return fresh or None

    def note(self) -> None:
        if self._first is not None and not self._seen:
            search = confirm(self._client.js, self._config, self._delivery, self._info, self._first)
            self._client.run(search)


def retention(info: Any) -> str:
    policy = info.config.retention
    return str(getattr(policy, "value", policy) or "limits")


def unsuited_error(config: NatsConfig) -> Refused:
    return Refused(
        f'stream "{config.stream}" forgets messages once they are consumed, and with them how far the sink came',
        where=config.where,
        fix="Use a stream with retention by limits, or set exclusive: false: then a replay is recognised only within "
        "the stream's duplicate window.",
    )


RESUME = ResumeScheme(
    kept_in="a header of every message in the stream",
    bound_by="the header is part of the message",
    replay="skipped up to the stream's last message",
    resumption=NatsResumption,
)
