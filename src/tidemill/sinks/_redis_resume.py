"""What a stream has already: a replay is skipped only when the stream is seen to hold these very events.

An event's entry id is its offset plus one, so a stream's last id says how far it is. Two things can make offsets come
that are not beyond it: a batch that is delivered again, and another log (the state was thrown away, another pipeline
writes here, or someone uses XADD by hand). The first is skipped; the second must stop, for the server would refuse the
new events one and all. They are told apart by the event's identity, which every entry carries in its field `id`; and
because entries may be trimmed, by a witness in the hash `tidemill:{<stream>}`: the first event of the last batch, and
where that batch began and ended, for one that begins there is of the same log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.errors import Refused
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._redis_errors import explain

_KEPT = 100_000  # streams whose end is remembered


@dataclass(frozen=True, slots=True)
class Seen:
    """Some of a stream's events in this delivery: the newest of those it should have, and all ids by offset."""

    stream: str
    first: Offset
    newest: Offset
    ids: Mapping[Offset, str]


class Ends:
    """How far each stream is, as far as this worker knows."""

    def __init__(self, redis: Any, where: str, sink: str) -> None:
        self._redis = redis
        self._where = where
        self._sink = sink
        self._last: dict[str, Offset] = {}

    def learn(self, streams: Sequence[str]) -> None:
        """Asks for the last ids of streams that were not met before, in one go."""
        unknown = [s for s in streams if s not in self._last]
        if not unknown:
            return
        if len(self._last) > _KEPT:
            self._last.clear()
            unknown = list(streams)
        with self._redis.pipeline(transaction=False) as pipeline:
            for stream in unknown:
                pipeline.xinfo_stream(stream)
            answers = pipeline.execute(raise_on_error=False)
        for stream, answer in zip(unknown, answers, strict=True):
            self._last[stream] = self._end(answer)

    def __getitem__(self, stream: str) -> Offset:
        """The last offset it has, -1 if none."""
        return self._last[stream]

    def advance(self, stream: str, offset: Offset) -> None:
        self._last[stream] = max(self._last.get(stream, -1), offset)

    def witness(self, delivery: Delivery, first: Mapping[str, tuple[Offset, str]]) -> None:
        """Notes each stream's first event of this delivery, before any of it is sent."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for stream, (offset, identity) in first.items():
                note = {
                    "pipeline": delivery.pipeline, "sink": self._sink, "offset": offset, "id": identity,
                    "start": delivery.start, "end": delivery.end,
                }  # fmt: skip
                pipeline.hset(_witness(stream), mapping=note)
            pipeline.execute()

    def confirm(self, delivery: Delivery, seen: Seen) -> None:
        """`Refused` unless the stream is known to hold these events."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for offset in (seen.newest, seen.first):
                pipeline.xrange(seen.stream, f"{offset + 1}-0", f"{offset + 1}-0")
            pipeline.hgetall(_witness(seen.stream))
            newest, first, note = pipeline.execute()
        note = {_text(k): _text(v) for k, v in note.items()}
        there = {o: _identity(e) for o, e in ((seen.newest, newest), (seen.first, first)) if e}
        if note.get("pipeline") == delivery.pipeline and note.get("offset", "").isdigit():
            there.setdefault(int(note["offset"]), note.get("id", ""))
        bounds = (note.get("start"), note.get("end"))
        continued = note.get("pipeline") == delivery.pipeline and str(delivery.start) in bounds
        known = {offset: identity for offset, identity in there.items() if offset in seen.ids}
        if (known or continued) and all(seen.ids[offset] == identity for offset, identity in known.items()):
            return
        owner = (
            f'; pipeline "{note["pipeline"]}", sink "{note["sink"]}" wrote it'
            if {"pipeline", "sink"} <= note.keys()
            else ""
        )
        what = "holds other events" if known else "does not show whether it holds these events"
        raise Refused(
            f'stream "{seen.stream}" has ids up to {self._last[seen.stream] + 1}-0 and {what} '
            f"from offset {seen.first} on{owner}",
            where=self._where,
            fix="If the state directory was lost or reset, offsets count anew: give the sink a new stream, or delete "
            f'this one (DEL "{seen.stream}" "{_witness(seen.stream)}") once its consumers are done. '
            "A stream is written by one pipeline only.",
        )  # fmt: skip

    def _end(self, answer: Any) -> Offset:
        if isinstance(answer, Exception):
            if "no such key" in str(answer).lower():
                return -1
            raise answer if not str(answer).startswith("WRONGTYPE") else explain(str(answer), self._where)
        milliseconds = int(_text(answer["last-generated-id"]).partition("-")[0])
        return milliseconds - 1


def last_id(redis: Any, stream: str) -> tuple[int, int]:
    """The two parts of a stream's last id, zeros if there is none."""
    from redis.exceptions import ResponseError

    try:
        text = _text(redis.xinfo_stream(stream)["last-generated-id"])
    except ResponseError as error:
        if "no such key" in str(error).lower():
            return 0, 0
        raise
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence)


def _witness(stream: str) -> str:
    return f"tidemill:{{{stream}}}"


def _identity(entries: Sequence[Any]) -> str:
    fields = {_text(k): v for k, v in entries[0][1].items()}
    return _text(fields.get("id", b""))


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
