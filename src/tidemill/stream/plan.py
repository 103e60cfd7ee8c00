"""What a lane is told, the run's plan and which part of which batch, and what it answers. Cheap to import."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import orjson

from tidemill.model.delivery import Receipt
from tidemill.model.position import Offset


@dataclass(frozen=True, slots=True)
class Plan:
    """What every lane of a run must know. Travels as text: Spark hands options to a source as strings only.

    `group` names the sinks that move together, `run` one start of their stream; `delivered` is their position at that
    start, `version` and `since` its epoch (`model.delivery`). `retry_seconds` is for how long a lane tries again by
    itself before it gives the driver the word. With `dead_letters` it answers poison events with dead letters, else it
    refuses
    the delivery.
    """

    pipeline: str
    source: str
    log: str
    group: str
    run: str
    sinks: tuple[tuple[str, dict[str, Any]], ...]
    delivered: Offset = 0
    retry_seconds: float = 10.0
    dead_letters: bool = False
    version: int = 0
    since: str = ""

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        doc = orjson.loads(text)
        return cls(**doc | {"sinks": tuple((kind, config) for kind, config in doc["sinks"])})


@dataclass(frozen=True, slots=True)
class Lane:
    """One task: this lane's rows of the batch `[start, end)`; `by` as in lanes.py."""

    start: Offset
    end: Offset
    lane: int
    lanes: int
    by: str


@dataclass(frozen=True, slots=True)
class LaneResult:
    """A sink's receipt for one lane; or, with a receipt that is not good, letters of what it will never take, packed
    (dlq/record.py): the lane is to be sent again without them."""

    receipt: Receipt
    dead_letters: bytes = b""
