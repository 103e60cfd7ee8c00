"""What a stream has already: an event is skipped only when the stream is known to hold this very event.

An event's entry id is its offset plus one, and its number among those that processors made of it. So a stream's last id
says how far it is, if it is one of ours. It is not when offsets count anew (the state was thrown away), when another
pipeline writes here, or when someone uses XADD by hand: then the server refuses our events from there on, and taking
the last id for ours would lose them. Two things tell that a stream holds the events up to its last id, or at least
those that come again:

- The note in the hash `tidemill:{<stream>}`: before a batch is sent, the first event of it here and where it began and
  ended; and in one transaction with the entries, `reach`, the first part of the last id. It vouches for all up to the
  last id if that is within reach, if its entry, where it is still there, is an event of this source, and if the batch
  is seen to be of the same log: by the event that is noted, by an entry, or because it begins where that one ended.
- The entries themselves, where there is no such note: every one of the events must be there, and be the same event.

Anything else is `Refused`. Entries may be trimmed or deleted at any time, and the note may be lost; not both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemill.errors import Refused
from tidemill.model.columns import Ints
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._shared.resume_scheme import ResumeScheme
from tidemill.sinks.redis.commands import EncodedGroup, Entries
from tidemill.sinks.redis.errors import overtaken

_KEPT = 100_000  # streams whose end is remembered
_PAGE = 1000  # entries read at a time


@dataclass(frozen=True, slots=True)
class StreamEvents:
    """Events of one stream that come, with offsets in rising order; `identity` is None for an offset not among them."""

    stream: str
    offsets: Ints
    identity: Callable[[Offset], str | None]

    @classmethod
    def of(cls, stream: str, entries: Entries, rows: Ints) -> StreamEvents:
        offsets = entries.offsets[rows]

        def identity(offset: Offset) -> str | None:
            at = int(np.searchsorted(offsets, offset))
            return _identity(entries, int(rows[at])) if at < len(rows) and offsets[at] == offset else None

        return cls(stream, offsets, identity)

    @property
    def first(self) -> Offset:
        return int(self.offsets[0])

    @property
    def newest(self) -> Offset:
        return int(self.offsets[-1])


@dataclass(frozen=True, slots=True)
class Claim:
    """What the note of a stream is to say of a delivery: its first event here, and how far the stream is before it."""

    first: Offset
    identity: str
    reach: int


@dataclass(frozen=True, slots=True)
class _Entry:
    milliseconds: int
    sequence: int
    identity: str  # of the event that was captured; empty if it is none
    sub: int = 0  # which of several that processors made of it

    @classmethod
    def of(cls, answer: Any) -> _Entry:
        name, fields = answer
        identity = {_text(k): v for k, v in (fields or {}).items()}.get("id", "")
        return cls(*_numbers(name), *split_identity(_text(identity)))

    @property
    def offset(self) -> Offset | None:
        """Of the event whose place this is; a dead letter sent again stands at none."""
        return None if self.sequence != self.sub else self.milliseconds - 1


@dataclass(frozen=True, slots=True)
class _Note:
    """`fields` as they are in the hash; `own` if this pipeline wrote them, `reach` -1 if they say none."""

    fields: Mapping[str, str]
    own: bool
    reach: int

    @classmethod
    def of(cls, answer: Any, delivery: Delivery) -> _Note:
        fields = {_text(k): _text(v) for k, v in _whole(answer).items()}
        reach = int(fields.get("reach", -1))
        return cls(fields, fields.get("pipeline") == delivery.pipeline and reach >= 0, reach)

    @property
    def first(self) -> dict[Offset, str]:
        """The event that is noted, by its offset."""
        if not self.own or "offset" not in self.fields:
            return {}
        return {int(self.fields["offset"]): split_identity(self.fields.get("id", ""))[0]}


@dataclass(frozen=True, slots=True)
class _End:
    """A stream's last id, and its entry if that is still there."""

    milliseconds: int
    sequence: int
    entry: _Entry | None

    @classmethod
    def of(cls, answer: Any) -> _End:
        """Of what XINFO STREAM answered; zeros if there is no stream."""
        if isinstance(answer, Exception):
            if "no such key" in str(answer).lower():
                return cls(0, 0, None)
            raise answer
        milliseconds, sequence = _numbers(answer["last-generated-id"])
        last = _Entry.of(answer["last-entry"]) if answer.get("last-entry") else None
        there = last is not None and (last.milliseconds, last.sequence) == (milliseconds, sequence)
        return cls(milliseconds, sequence, last if there else None)

    def __str__(self) -> str:
        return f"{self.milliseconds}-{self.sequence}"

    def foreign(self, source: str) -> bool:
        """Whether the entry is there and is no event of this source."""
        return self.entry is not None and not self.entry.identity.startswith(f"{source}:")


class StreamEnds:
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
            self._last[stream] = _End.of(answer).milliseconds - 1

    def __getitem__(self, stream: str) -> Offset:
        """The last offset it has, -1 if none."""
        return self._last[stream]

    def advance(self, stream: str, offset: Offset) -> None:
        self._last[stream] = max(self._last.get(stream, -1), offset)

    def claim(self, delivery: Delivery, claims: Mapping[str, Claim]) -> None:
        """Writes the notes, before anything is sent."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for stream, claim in claims.items():
                note = {
                    "pipeline": delivery.pipeline, "sink": self._sink, "offset": claim.first, "id": claim.identity,
                    "start": delivery.start, "end": delivery.end, "reach": claim.reach,
                }  # fmt: skip
                pipeline.hset(note_key(stream), mapping=note)
            pipeline.execute()

    def confirm(self, delivery: Delivery, seen: StreamEvents, *, noted: bool) -> Offset:
        """Through which offset events may be skipped; `Refused` if the stream is not known to hold those given.

        `noted`: whether the note is of an earlier attempt; this one's own tells nothing.
        """
        stream = seen.stream
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.xinfo_stream(stream)
            pipeline.hgetall(note_key(stream))
            for offset in (seen.first, seen.newest):
                pipeline.xrange(stream, f"{offset + 1}-0", f"{offset + 1}", count=1)
            answer, fields, *pages = pipeline.execute(raise_on_error=False)
        end, note = _End.of(answer), _Note.of(fields, delivery)
        if end.milliseconds - 1 != self._last[stream]:
            raise overtaken(self._where)
        entries = [_Entry.of(entry) for page in pages for entry in _whole(page)]
        there = (note.first if noted else {}) | {e.offset: e.identity for e in entries if e.offset is not None}
        known = {o: identity == seen.identity(o) for o, identity in there.items() if seen.identity(o) is not None}
        if not all(known.values()):
            raise self._refusal(seen, end, note, "holds other events")
        foreign = end.foreign(delivery.source) or (noted and note.own and end.milliseconds > note.reach)
        same_log = bool(known) or note.fields.get("end") == str(delivery.start)
        if noted and note.own and same_log and not foreign:
            return end.milliseconds - 1
        if self._all_there(seen):
            return seen.newest
        if foreign:
            raise self._foreign(stream, end, f"the events from offset {seen.first} on")
        raise self._refusal(seen, end, note, "does not show whether it holds these events")

    def overrun(self, delivery: Delivery, seen: StreamEvents) -> None:
        """After a transaction of these events of which some were refused: a transaction does not stop there, so if a
        stranger's entry stands among them, those before it are missing and those after it are not. Then the note must
        not vouch for them."""
        entries = self._entries(seen)
        ours = {e.offset for e in entries if e.offset is not None and seen.identity(e.offset) == e.identity}
        strange = [e for e in entries if e.offset not in ours and not e.identity.startswith(f"{delivery.source}:")]
        missing = [offset for offset in seen.offsets.tolist() if offset not in ours]
        if strange and missing:  # else our own other worker was here
            self._redis.hset(note_key(seen.stream), mapping={"reach": missing[0]})

    def next_id(self, delivery: Delivery, stream: str, offset: Offset) -> str:
        """The id for a dead letter that is sent again (`dead_letter`)."""
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.xinfo_stream(stream)
            pipeline.hgetall(note_key(stream))
            answer, fields = pipeline.execute(raise_on_error=False)
        end, note = _End.of(answer), _Note.of(fields, delivery)
        if end.foreign(delivery.source) or (note.own and end.milliseconds > note.reach):
            raise self._foreign(stream, end, f"the event at offset {offset}")
        if offset + 1 <= end.milliseconds:
            return f"{end.milliseconds}-{end.sequence + 1}"
        if not note.own or note.reach < offset + 1:
            reach = {"pipeline": delivery.pipeline, "sink": self._sink, "reach": offset + 1}
            self._redis.hset(note_key(stream), mapping=reach)
        return f"{offset + 1}-0"

    def _all_there(self, seen: StreamEvents) -> bool:
        found = {e.offset: e.identity for e in self._entries(seen) if e.offset is not None}
        return all(seen.identity(offset) == found.get(offset) for offset in seen.offsets.tolist())

    def _entries(self, seen: StreamEvents) -> list[_Entry]:
        """Those that have ids of these events, and what stands between them."""
        entries: list[_Entry] = []
        start, stop = f"{seen.first + 1}-0", f"{seen.newest + 1}"
        while page := self._redis.xrange(seen.stream, start, stop, count=_PAGE):
            entries += map(_Entry.of, page)
            start = f"{entries[-1].milliseconds}-{entries[-1].sequence + 1}"
        return entries

    def _foreign(self, stream: str, end: _End, what: str) -> Refused:
        return Refused(
            f'somebody else wrote to stream "{stream}", whose last id is now {end}: {what} cannot take their places',
            where=self._where,
            fix="A stream is written by one pipeline only: find who uses XADD on it. Then free the name (consumers "
            f'read the rest there), and the pipeline goes on where it stopped: RENAME "{stream}" "{_aside(stream)}". '
            "Or give the sink another stream.",
        )

    def _refusal(self, seen: StreamEvents, end: _End, note: _Note, what: str) -> Refused:
        known = {"pipeline", "sink"} <= note.fields.keys()
        owner = f'; pipeline "{note.fields["pipeline"]}", sink "{note.fields["sink"]}" wrote it' if known else ""
        return Refused(
            f'stream "{seen.stream}" has ids up to {end} and {what} from offset {seen.first} on{owner}',
            where=self._where,
            fix="If the state directory was lost or reset, offsets count anew: give the sink a new stream, or delete "
            f'this one (DEL "{seen.stream}" "{note_key(seen.stream)}") once its consumers are done. '
            "A stream is written by one pipeline only.",
        )


class RedisResumption:
    """One delivery. Entries up to their stream's last id are left out, once the stream is known to hold them; the note
    of each stream that is met says so before the first entry is sent. How far a stream is then stands in the
    transaction with its entries (`reach_notes`), so that nothing is left to be noted after the last."""

    def __init__(self, ends: StreamEnds, delivery: Delivery) -> None:
        self.skipped = 0
        self._ends, self._delivery = ends, delivery
        self._proven: dict[str, Offset] = {}
        self._first: dict[str, tuple[Offset, str]] = {}

    def fresh(self, group: EncodedGroup) -> EncodedGroup | None:
        self._ends.learn(group.streams)
        offsets, claims = group.entries.offsets, {}
        for stream, rows in group.by_stream():
            last = self._ends[stream]
            old = rows[(offsets[rows] <= last) & (offsets[rows] > self._proven.get(stream, -1))]
            if len(old):
                seen = StreamEvents.of(stream, group.entries, old)
                self._proven[stream] = self._ends.confirm(self._delivery, seen, noted=stream not in self._first)
            elif stream in self._first:
                continue
            self._first.setdefault(stream, (int(offsets[rows[0]]), _identity(group.entries, int(rows[0]))))
            claims[stream] = Claim(*self._first[stream], reach=self._proven.get(stream, last) + 1)
        if claims:
            self._ends.claim(self._delivery, claims)
        last_ids = np.array([self._ends[stream] for stream in group.streams], np.int64)
        fresh = group.rows[offsets[group.rows] > last_ids[group.of[group.rows]]]
        self.skipped += len(group.rows) - len(fresh)
        return group.of_rows(fresh) if len(fresh) else None

    def note(self) -> None:
        """Each transaction carried its own."""


def reach_notes(sent: EncodedGroup) -> list[tuple[str, str]]:
    """For one transaction: of each stream the note's key, and how far the stream is with these entries."""
    offsets = sent.entries.offsets
    return [(note_key(stream), str(int(offsets[rows[-1]]) + 1)) for stream, rows in sent.by_stream()]


def _identity(entries: Entries, row: int) -> str:
    return split_identity(bytes(entries.ids.data[entries.ids.ends[row] : entries.ids.ends[row + 1]]).decode())[0]


def split_identity(text: str) -> tuple[str, int]:
    """An event's id without the number that tells apart what processors made of one event, and that number."""
    head, _, ordinal = text.rpartition(":")
    whole, _, sub = ordinal.partition(".")
    return (f"{head}:{whole}", int(sub)) if head and sub.isdigit() else (text, 0)


def note_key(stream: str) -> str:
    """Of the note: in a cluster it lies where the stream lies, so that neither outlives the other."""
    return f"tidemill::{stream}" if _tagged(stream) else f"tidemill:{{{stream}}}"


def _aside(stream: str) -> str:
    return f"{stream}:old" if _tagged(stream) else f"{{{stream}}}:old"


def _tagged(stream: str) -> bool:
    """https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags"""
    tag, closed, _ = stream.partition("{")[2].partition("}")
    return bool(tag and closed)


def _numbers(name: bytes | str) -> tuple[int, int]:
    milliseconds, _, sequence = _text(name).partition("-")
    return int(milliseconds), int(sequence)


def _whole(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


RESUME = ResumeScheme(
    kept_in="the stream's own ids, vouched for by a hash beside it",
    bound_by="the hash is written before a batch, its reach in one transaction with the entries",
    replay="skipped, or refused by the server for its id",
    resumption=RedisResumption,
)
