"""A third party's sink, as Spark workers meet it: installed beside tidemill, found through its entry point.

It notes every write in `<directory>/<id>.jsonl`, and fails on demand: while `<directory>/<id>-<lane>.fail` exists, that
lane's writes raise `DeliveryError`, or what the file says: `refuse`, or a class as `module:name`.
`<directory>/<id>.poison` is a JSON list of offsets that it never takes; while `<directory>/<id>.hold` exists a write
does not return, and `<id>.held` is made. It emits as many events as `<directory>/<id>.say` says.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tidemill.contracts import BaseProcessor, BaseSink, Capabilities, Check, ProcessorConfig, SinkConfig
from tidemill.errors import DeliveryError, Poisoned, ProcessingError, Refused, TidemillError
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.derived import image, reshape
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.telemetry.events import warn

ENTRY_POINTS = (
    "[tidemill.sinks]\nscribe = scribe:Scribe\nhermit = scribe:Hermit\n[tidemill.processors]\nquill = scribe:Quill\n"
)
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
        hold, deadline = Path(self.config.directory, f"{self.config.id}.hold"), time.monotonic() + 300
        if hold.exists():
            hold.with_suffix(".held").touch()
        while hold.exists() and time.monotonic() < deadline:
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
        last = block.table.columns if delivery.end > delivery.start and rows else ()
        note = {"start": delivery.start, "end": delivery.end, "lane": delivery.lane, "lanes": delivery.lanes}
        told = {"pid": os.getpid(), "rows": rows, "columns": [column.name for column in last]}
        line = orjson.dumps(note | told) + b"\n"
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


class QuillConfig(ProcessorConfig):
    fails_on: tuple[int, ...] = Field(default=(), description="Offsets that it cannot process.")
    copies: int = Field(default=1, description="Events that each becomes.")
    length_of: str = Field(default="", description="A column whose length becomes a column of its own.")
    length_at: int | None = Field(default=None, description="Only blocks with this offset get that column.")


class Quill(BaseProcessor[QuillConfig]):
    """A third party's processor: fails, multiplies, and adds a column that only the rows tell."""

    Config: ClassVar[type[ProcessorConfig]] = QuillConfig

    def derive(self, table: Table) -> Table | None:
        return None if self.config.length_of else table

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            bad = [int(offset) for offset in block.offsets() if offset in self.config.fails_on]
            if bad:
                raise ProcessingError(dict.fromkeys(bad, "the quill is blunt"))
            if self.config.length_of and self.config.length_at in (None, *block.offsets().tolist()):
                block = self._measured(block)
            yield block.take(np.repeat(np.arange(block.rows), self.config.copies))

    def _measured(self, block: Block) -> Block:
        images, kind = dict(block.struct("after") or {}), DataType("integer", pa.int32(), JsonForm.NUMBER)
        images["length"] = pc.utf8_length(images[self.config.length_of])
        table = replace(block.table, columns=(*block.table.columns, Column("length", kind)))
        after = image(list(images.values()), table.columns, block.column("after"))
        return reshape(block, table, {"after": after}, [*(c.name for c in block.table.columns), None])


class Hermit(Scribe):
    """The same for who wants all of a batch in one lane."""

    capabilities = Capabilities(single_lane=True)
