"""Spans as this project keeps them until a `Tracer` (tracer.py) exports them. Needs no library: Spark workers fill them
in, and send them home with their receipts.

A trace belongs to one append of the change log. Its id follows from what the append's index record says, so capture,
driver and any later process name the same trace without telling each other (ADR 56).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    """`start` and `end` are nanoseconds since 1970; without a `parent` it is the root. `links` are other traces, each
    with the span that is meant. `error` is the code of what went wrong, or its class."""

    name: str
    start: int
    end: int
    id: int
    parent: int = 0
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    error: str = ""
    links: tuple[tuple[int, int], ...] = ()


def trace_id(pipeline: str, base: int, written_at: int) -> int:
    """Of the append that begins at the offset `base` and was written at `written_at`, milliseconds since 1970."""
    return _hash(16, pipeline, base, written_at)


def root_id(trace: int) -> int:
    return _hash(8, trace, "root")


def new_id(*parts: object) -> int:
    """A span's: the same for the same parts, which name the work and the attempt at it."""
    return _hash(8, *parts)


def trace_text(trace: int) -> str:
    """As logs and trace viewers show it."""
    return f"{trace:032x}"


def _hash(size: int, *parts: object) -> int:
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=size).digest()) or 1  # 0 is no id


class LaneSpans:
    """What a worker notes of one lane: few spans for each batch, never one for a row. Any thread may add.

    Parents are relative: the span with id 0 is the lane's own, whose parent only the driver knows."""

    def __init__(self, **attributes: Attribute) -> None:
        self._start = time.time_ns()
        self._attributes = attributes
        self._spans: list[Span] = []

    def describe(self, **attributes: Attribute) -> None:
        """More attributes of the lane's own span."""
        self._attributes |= attributes

    def add(self, name: str, start: int, error: str = "", **attributes: Attribute) -> None:
        """It ends now."""
        self._spans.append(Span(name, start, time.time_ns(), 0, attributes=attributes, error=error))

    def pack(self) -> bytes:
        lane = Span("lane.deliver", self._start, time.time_ns(), 0, attributes=self._attributes)
        return orjson.dumps([asdict(each) for each in (lane, *self._spans)])


def unpack(packed: bytes, parent: int, *attempt: object) -> list[Span]:
    """A lane's spans below `parent`; `attempt` tells them from those of another lane, or of another try."""
    documents: list[dict[str, Any]] = orjson.loads(packed)
    lane = new_id(parent, *attempt)
    spans = []
    for number, document in enumerate(documents):
        place = {"id": new_id(lane, number), "parent": lane} if number else {"id": lane, "parent": parent}
        spans.append(Span(**document | place | {"links": ()}))
    return spans
