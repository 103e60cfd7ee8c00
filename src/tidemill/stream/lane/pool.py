"""Sinks, processors and log readers that stay in a Spark worker between batches: connections, engines, indexes."""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill import registry
from tidemill.contracts import Sink
from tidemill.log import LogReader
from tidemill.schema.sensing import SensorCache
from tidemill.stream.lane.chain import Chain
from tidemill.telemetry.events import warn
from tidemill.telemetry.relay import EventBuffer

_IDLE_SECONDS = 600.0


@dataclass(slots=True)
class Tools:
    """What the lanes of one group of sinks use in this process."""

    run: str
    log: LogReader
    sinks: dict[str, Sink] = field(default_factory=dict)
    processors: Chain | None = None
    sensed: SensorCache = field(default_factory=SensorCache)
    used_at: float = 0.0

    def chain(self, specs: Sequence[tuple[str, dict[str, Any]]], source_id: str) -> Chain:
        """Built on first use, as sinks are."""
        if self.processors is None:
            self.processors = Chain(specs, source_id)
        return self.processors

    def sink(self, kind: str, config: dict[str, Any]) -> Sink:
        """Built on first use, so that a sink which cannot be built fails alone."""
        name = str(config["id"])
        if name not in self.sinks:
            member = registry.load("sinks", kind)
            self.sinks[name] = member(member.Config.model_validate(config))
        return self.sinks[name]

    def discard(self, name: str) -> None:
        """After an error: the next try starts with fresh connections."""
        sink = self.sinks.pop(name, None)
        if sink is not None:
            _close(sink)

    def discard_processors(self) -> None:
        """After an error of their own: the next batch starts with new ones, but with what is known of structures."""
        if self.processors is not None:
            self.processors.close()

    def close(self) -> None:
        for name in list(self.sinks):
            self.discard(name)
        self.discard_processors()


class Pool:
    """One set of tools per group of sinks. A new run of a group closes those of the run before; tools that were not
    used for long are closed, because nobody says here that a pipeline has ended."""

    def __init__(self) -> None:
        self._tools: dict[str, Tools] = {}

    def tools(self, group: str, run: str, log: str) -> Tools:
        kept = self._tools.get(group)
        if kept is None or kept.run != run:
            if kept is not None:
                kept.close()
            kept = self._tools[group] = Tools(run, LogReader(log))
        kept.used_at = time.monotonic()
        for other in [name for name, tools in self._tools.items() if kept.used_at - tools.used_at > _IDLE_SECONDS]:
            self._tools.pop(other).close()
        return kept

    def close(self) -> None:
        for tools in self._tools.values():
            tools.close()
        self._tools.clear()


def _close(sink: Sink) -> None:
    try:
        sink.close()
    except Exception as error:  # noqa: BLE001  a sink that failed may fail to close as well; nothing depends on it
        warn("stream.sink_not_closed", sink=sink.config.id, error=type(error).__name__)


POOL = Pool()
"""This worker's. Spark ends a worker by a signal or by leaving its loop; in the second case this closes it."""
atexit.register(POOL.close)
EVENTS = EventBuffer()
"""What happened in this worker since its last receipt."""
