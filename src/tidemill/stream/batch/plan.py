"""What a lane gets, the run's plan and which part of which batch, and what it returns. Cheap to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from tidemill.model.delivery import Receipt
from tidemill.model.position import Offset
from tidemill.model.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class Plan:
    """What every lane of a run must know. Travels as text: Spark hands options to a source as strings only.

    `group` names the sinks that move together, `run` one start of their stream; `delivered` is their position at that
    start, `version` and `since` its epoch (`model.delivery`). `retry_seconds` is for how long a lane tries again by
    itself before it gives the driver the word. With `dead_letters` it returns poison events as dead letters, else it
    refuses the delivery. `known` is what the driver knows of structures that processors give (structures.py) when the
    stream starts, `known_file` where its machine has what it knows when a batch is planned. `sensing` says what is
    looked at on the way, None for nothing. `views` are by sink and table, of sinks that do not see a table whole
    (schema_barrier.py). `held` are tables in quarantine, whose rows are left out (`Quarantine.to_hold`). `traced`:
    lanes send spans home with their receipts (telemetry/spans.py).
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
    processors: tuple[tuple[str, dict[str, Any]], ...] = ()
    known: dict[str, Any] = field(default_factory=dict)
    known_file: str = ""
    sensing: dict[str, Any] | None = None
    views: dict[str, Any] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    traced: bool = False

    @property
    def changing(self) -> dict[str, Any]:
        """What may be otherwise when the next batch is planned: `replace(plan, **changing)` is the plan by then."""
        return {"known": self.known, "views": self.views, "held": self.held}

    @property
    def quarantines(self) -> list[Quarantine]:
        return [Quarantine.from_hold(each) for each in self.held]

    @property
    def shared_views(self) -> dict[str, Any]:
        """By table: what processors see of it, and with them all sinks."""
        return share_views(self.views)

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        doc = orjson.loads(text)
        pairs = {name: tuple((kind, config) for kind, config in doc[name]) for name in ("sinks", "processors")}
        return cls(**doc | pairs)


def share_views(views: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """By table, from what is kept by sink and table: of several the one that goes furthest."""
    found: dict[str, list[Any]] = {}
    for mine in views.values():
        for table, seen in mine.items():
            if table not in found or seen[-1][0] > found[table][-1][0]:
                found[table] = seen
    return found


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
    """A sink's receipt for one lane; or, with a receipt that is not good, dead letters of what it will never take
    (packed, dlq/record.py): the lane is to be sent again without them.

    A lane's first result tells of its processors, in JSON: what each did (`processed`), and structures that the driver
    has to know before the lane is sent again (`learned`)."""

    receipt: Receipt
    dead_letters: bytes = b""
    processed: str = ""
    learned: str = ""
