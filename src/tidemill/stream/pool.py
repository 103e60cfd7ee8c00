"""Sinks and log readers that stay in a Spark worker between batches: connections, prepared statements, indexes."""

from __future__ import annotations

import atexit
from dataclasses import dataclass, field
from typing import Any

from tidemill import registry
from tidemill.contracts import Sink
from tidemill.log import LogReader
from tidemill.telemetry.events import warn
from tidemill.telemetry.relay import EventBuffer


@dataclass(slots=True)
class Tools:
    """What the lanes of one group of sinks use in this process."""

    run: str
    log: LogReader
    sinks: dict[str, Sink] = field(default_factory=dict)

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

    def close(self) -> None:
        for name in list(self.sinks):
            self.discard(name)


class Pool:
    """One set of tools per group of sinks. A new run of a group closes those of the run before."""

    def __init__(self) -> None:
        self._tools: dict[str, Tools] = {}

    def tools(self, group: str, run: str, log: str) -> Tools:
        kept = self._tools.get(group)
        if kept is None or kept.run != run:
            if kept is not None:
                kept.close()
            kept = self._tools[group] = Tools(run, LogReader(log))
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
