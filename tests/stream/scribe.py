"""A third party's sink, as Spark workers meet it: installed beside tidemill, found through its entry point.

It notes every write in `<directory>/<id>.jsonl`, and fails on demand: while `<directory>/<id>-<lane>.fail` exists, that
lane's writes raise `DeliveryError`, or what the file says: `refuse`, or a class as `module:name`.
`<directory>/<id>.poison` is a JSON list of offsets that it never takes; while `<directory>/<id>.hold` exists a write
does not return. It emits as many events as `<directory>/<id>.say` says.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import orjson
from pydantic import Field

from tidemill.contracts import BaseSink, Capabilities, Check, SinkConfig
from tidemill.errors import DeliveryError, Poisoned, Refused, TidemillError
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.telemetry.events import warn

ENTRY_POINTS = "[tidemill.sinks]\nscribe = scribe:Scribe\nhermit = scribe:Hermit\n"
# A module that only workers load: the driver never hears of the class.
PENS = 'from tidemill.errors import Refused\n\n\nclass BrokenPen(Refused):\n    code = "broken-pen"\n'
METADATA = "Metadata-Version: 2.1\nName: scribe\nVersion: 1.0\n"


class ScribeConfig(SinkConfig):
    directory: str = Field(description="Where to write.")
    at_once: int = Field(default=1000, description="How many poison events it names at a time.")


class Scribe(BaseSink[ScribeConfig]):
    Config: ClassVar[type[SinkConfig]] = ScribeConfig
    tier = Tier.AT_LEAST_ONCE

    def write(self, delivery: Delivery) -> Receipt:
        fault = Path(self.config.directory, f"{self.config.id}-{delivery.lane}.fail")
        if fault.exists():
            raise _kind(fault.read_text())("the scribe's pen is broken")
        hold, patience = Path(self.config.directory, f"{self.config.id}.hold"), time.monotonic() + 60
        while hold.exists() and time.monotonic() < patience:
            time.sleep(0.02)
        self._say(delivery)
        self._look_for_poison(delivery)
        rows: list[Any] = []
        for block in delivery:
            image = block.struct("after") or block.struct("key") or block.struct("before") or {}
            ids = image["id"].to_pylist()
            rows += zip(
                [block.table.full_name] * block.rows,
                ids,
                block.batch.column(0).to_pylist(),
                block.batch.column(1).to_pylist(),
                strict=True,
            )
        note = {"start": delivery.start, "end": delivery.end, "lane": delivery.lane, "lanes": delivery.lanes}
        line = orjson.dumps(note | {"pid": os.getpid(), "rows": rows}) + b"\n"
        with Path(self.config.directory, f"{self.config.id}.jsonl").open("ab") as file:
            file.write(line)
        return Receipt(self.config.id, delivery.lane, events=len(rows), bytes=len(line))

    def _say(self, delivery: Delivery) -> None:
        file = Path(self.config.directory, f"{self.config.id}.say")
        for number in range(int(file.read_text()) if file.exists() else 0):
            warn("scribe.dipped", lane=delivery.lane, number=number)

    def _look_for_poison(self, delivery: Delivery) -> None:
        file = Path(self.config.directory, f"{self.config.id}.poison")
        poison = set(orjson.loads(file.read_bytes())) if file.exists() else set()
        bad = sorted(poison & {int(offset) for block in delivery for offset in block.offsets()})
        if bad:
            raise Poisoned(dict.fromkeys(bad[: self.config.at_once], "unreadable"))

    def doctor(self) -> Iterable[Check]:
        return ()

    def close(self) -> None:
        pass


def _kind(name: str) -> type[TidemillError]:
    if ":" not in name:
        return Refused if name == "refuse" else DeliveryError
    module, _, kind = name.partition(":")
    found: type[TidemillError] = getattr(importlib.import_module(module), kind)
    return found


class Hermit(Scribe):
    """The same for who wants all of a batch in one lane."""

    capabilities = Capabilities(single_lane=True)
