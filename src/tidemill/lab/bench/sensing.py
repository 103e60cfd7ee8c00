"""What sensing costs: the same lane of a prepared log, delivered as JSON files with and without it.

No database and no Spark: capture and the JVM, which sensing does not touch, would only hide it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.lab.bench.material import TABLE, make_block
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.block import Block
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.model.table import Column
from tidemill.model.types import DataType, JsonForm
from tidemill.schema.sensing import SensingOptions, Sensor, SensorCache
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.lane.deliver import deliver
from tidemill.stream.lane.pool import POOL
from tidemill.stream.lane.sensing import LaneSensor

_APPEND = 20_000
_DOCUMENT = Column("document", DataType("jsonb", pa.string(), JsonForm.RAW))
_TABLE = replace(TABLE, columns=(*TABLE.columns, _DOCUMENT)).with_fingerprint()


class SensingBench:
    def __init__(self, *, rows: int, rounds: int, say: Callable[[str], None]) -> None:
        self.rows, self.rounds, self._say = rows, rounds, say

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as scratch:
            self._say(f"making {self.rows:,} events with a nested JSON column")
            log = self._make_log(Path(scratch) / "log")
            rates: dict[str, list[float]] = {"without": [], "with": []}
            self._deliver(log, Path(scratch), "warm", None)
            self._deliver(log, Path(scratch), "warm sensing", SensingOptions())
            for number in range(self.rounds):
                for name, options in (("without", None), ("with", SensingOptions())):
                    rates[name].append(self._deliver(log, Path(scratch), f"{name} {number}", options))
            full = self._look_at_all(log)
        without, sensed = median(rates["without"]), median(rates["with"])
        found = {
            "rows": self.rows, "rounds": self.rounds, "rows_per_cpu_s_without": round(without),
            "rows_per_cpu_s_with": round(sensed), "overhead_ratio": round(sensed / without, 3), "full_us_per_row": full,
        }  # fmt: skip
        self._say(f"  {found['overhead_ratio']:.3f} of the speed without sensing, {full:.3f} µs a row at sample_rate 1")
        return found

    def _make_log(self, directory: Path) -> str:
        log = LogWriter.open(str(directory), LogConfig.model_validate({"fsync": False}))
        for first in range(0, self.rows, _APPEND):
            count = min(_APPEND, self.rows - first)
            log.append(Committed((_with_documents(first, count),), count, ((count, Position(f"0/{first + count:X}")),)))
        log.close()
        return str(directory)

    def _deliver(self, log: str, scratch: Path, run: str, options: SensingOptions | None) -> float:
        """Rows a second of CPU: what else runs on the machine does not count."""
        sink = ("files", {"id": "bench", "path": str(scratch / run.replace(" ", "-"))})
        plan = Plan("bench", "bench", log, "bench", run, (sink,), sensing=asdict(options) if options else None)
        lane = Lane(0, self.rows, 0, 1, "table")
        began = time.process_time()
        sensor = None
        if plan.sensing is not None:
            sensor = LaneSensor(POOL.tools("bench", run, log), "bench", lane, plan.sensing)
        (result,) = deliver(plan, lane, sensor=sensor)
        assert result.receipt.ok, result.receipt.error
        if sensor is not None:
            sensor.finish()
        return self.rows / (time.process_time() - began)

    def _look_at_all(self, log: str) -> float:
        """Microseconds of CPU a row, without sampling."""
        reader, cache, spent = LogReader(log), SensorCache(), []
        blocks = [reader.read(ref) for ref in reader.refs(0, self.rows)]
        for _ in range(self.rounds):
            began = time.process_time()
            sensor = Sensor(SensingOptions(sample_rate=1), cache)
            for number, block in enumerate(blocks):
                sensor.observe(number, block)
            sensor.take()
            spent.append(time.process_time() - began)
        return round(median(spent) / self.rows * 1e6, 3)


def _with_documents(first: int, rows: int) -> Block:
    """The rows of the other benches, each with a document of three levels; every seventh has one field more."""
    plain = make_block(first, rows)
    after = plain.batch.column("after")
    numbers = after.field(0).cast(pa.string())
    more = pc.if_else(pc.equal(pc.subtract(after.field(0), pc.multiply(pc.divide(after.field(0), 7), 7)), 0),
                      ',"gift":true', "")  # fmt: skip
    documents = pc.binary_join_element_wise(
        '{"sku":"A-', numbers, '","customer":{"id":', numbers,
        ',"name":"Ada Lovelace","address":{"city":"London"}},"lines":[{"n":1,"price":9.5},{"n":2,"price":3}]',
        more, "}", "",
    )  # fmt: skip
    columns = [*(after.field(i) for i in range(after.type.num_fields)), documents]
    struct = pa.StructArray.from_arrays(columns, fields=list(_TABLE.arrow_struct()))
    index = plain.batch.schema.get_field_index("after")
    return Block(_TABLE, plain.batch.set_column(index, pa.field("after", struct.type), struct))
