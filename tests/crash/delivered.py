"""Where delivered events are read from: the files sink's directory, a Kafka topic, or the change log itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from tests.servers.kafka import consume
from tidemill.formats.json import JsonFormat
from tidemill.log.entry import Tail
from tidemill.log.reader import LogReader

Event = dict[str, Any]


def from_files(directory: Path) -> Iterator[Event]:
    """All of a files sink's JSON lines as they stand now, table by table, in the order of names."""
    for path in sorted(directory.glob("[!_]*/*.jsonl")):
        yield from map(orjson.loads, path.read_bytes().splitlines())


def from_kafka(bootstrap: str, topic: str) -> tuple[list[Event], list[str]]:
    """What a `read_committed` consumer has, sorted by offset; and every key whose events were out of order.

    Kafka keeps the order of a partition, and a key is always in one. Events of different keys have no order there.
    """
    events: list[Event] = []
    newest: dict[tuple[str, bytes], tuple[int, int]] = {}
    unordered, seen = [], set()
    for message in consume(bootstrap, topic):
        event = orjson.loads(message.value())
        events.append(event)
        if event["event_id"] in seen or message.key() is None:
            continue
        seen.add(event["event_id"])
        key = (event["table"], message.key())
        place = event["offset"], int(event["event_id"].rpartition(":")[2].partition(".")[2] or 0)
        if place <= newest.get(key, (-1, 0)):
            unordered.append(f"{key}: {place} came after {newest[key]}")
        newest[key] = place
    return sorted(events, key=lambda event: event["offset"]), unordered


class LogDelivered:
    """Loop one alone: what capture has made visible, encoded as a sink would."""

    def __init__(self, uri: str, source: str) -> None:
        self._reader = LogReader(uri)
        self._source = source
        self._format = JsonFormat()
        self.tail = Tail(0, self._reader.tail().position)

    def new(self) -> Iterator[Event]:
        """In offset order, append by append; `tail` moves with the appends that were read whole."""
        while self.tail.offset < self._reader.tail().offset:
            events: list[Event] = []
            stop = self._reader.plan(self.tail.offset, max_events=50_000, max_bytes=1 << 26)
            assert self.tail.offset < stop
            for ref in self._reader.refs(self.tail.offset, stop):
                encoded = self._format.encode(self._reader.read(ref), self._source)
                events += map(orjson.loads, encoded.to_pylist())
            yield from sorted(events, key=lambda event: event["offset"])
            self.tail = Tail(stop, self._reader.position_at(stop))
