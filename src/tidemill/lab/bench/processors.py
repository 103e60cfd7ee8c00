"""Every processor over the bench table: events/s of one core from block to block; JavaScript beside Node.

Node gets the same events as JSON lines, parses each, runs the same function, and writes each again: what a consumer in
Node would do. Ours begins and ends with Arrow. CPU time of all processes counts on both sides.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemill import registry
from tidemill.formats.json import JsonFormat
from tidemill.lab.bench.drain import drain_log
from tidemill.lab.bench.material import Material, make_block
from tidemill.lab.bench.processes import children
from tidemill.model.block import Block
from tidemill.model.types import DataType, JsonForm
from tidemill.processors.python import put

_SOURCE = "bench"
_BLOCK = 20_000
_JSON = DataType("jsonb", pa.string(), JsonForm.RAW)
SCRIPT = """\
function processBatch(events) {
  for (const ev of events) ev.after.status = ev.after.status.toUpperCase();
  return events;
}
"""
_NODE = """\
const lines = require("fs").readFileSync(process.argv[2], "utf8").split("\\n").filter(Boolean);
%s
const size = 4096;
for (let round = 0; round < 3; round++) {
  const before = process.cpuUsage();
  let bytes = 0;
  for (let at = 0; at < lines.length; at += size) {
    const events = lines.slice(at, at + size).map((line) => JSON.parse(line));
    for (const ev of processBatch(events)) bytes += JSON.stringify(ev).length;
  }
  const used = process.cpuUsage(before);
  console.log((used.user + used.system) / 1e6, bytes);
}
"""
_PYTHON = """\
import pyarrow.compute as pc
from tidemill.processors.python import get, put

def process(batch):
    return put(batch, "after.status", pc.utf8_upper(get(batch, "after.status")))
"""
SETTINGS: dict[str, dict[str, Any]] = {
    "filter": {"where": {"field": "after.status", "ne": "status 0"}},
    "mask": {"rules": [{"columns": ["note"], "method": "redact"}]},
    "flatten": {},
    "rename": {"columns": {"note": "remark"}},
    "sql": {"query": "SELECT * REPLACE (upper(status) AS status) FROM events"},
}
"""What each is measured with, where it is there. A member that is not named here is left out."""


class ProcessorsBench:
    def __init__(self, *, rows: int, rounds: int, say: Callable[[str], None]) -> None:
        self.rows, self.rounds, self._say = rows, rounds, say

    def run(self) -> dict[str, Any]:
        self._say(f"making {self.rows:,} events")
        blocks = [make_block(at, min(_BLOCK, self.rows - at)) for at in range(0, self.rows, _BLOCK)]
        found: dict[str, Any] = {"rows": self.rows, "rounds": self.rounds, "none_us_per_row": self._pass(blocks)}
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as scratch:
            script = Path(scratch) / "bench_function.py"
            script.write_text(_PYTHON)
            limits = {"cpu_ms": 60_000, "timeout_ms": 60_000, "mem_mb": 512}
            ours = self._clock("javascript", {"inline": SCRIPT, "limits": limits}, blocks)
            found["javascript_us_per_row"] = ours
            found["javascript_events_per_s"] = round(1e6 / ours)
            node = self._node(blocks, Path(scratch))
            found["node_us_per_row"] = node
            found["ratio_node"] = None if node is None else round(node / ours, 2)
            known = set(registry.names("processors"))
            for name, settings in SETTINGS.items():
                given = [_with_json(block) for block in blocks] if name == "flatten" else blocks
                found[f"{name}_us_per_row"] = self._clock(name, settings, given) if name in known else None
            found["python_arrow_us_per_row"] = self._clock("python", {"file": str(script)}, blocks)
        return found

    def _pass(self, blocks: list[Block]) -> float:
        """What the loop itself costs."""
        return self._time("none", lambda: [list(iter([block])) for block in blocks], lambda: 0.0)

    def _clock(self, kind: str, settings: dict[str, Any], blocks: list[Block]) -> float:
        member = registry.load("processors", kind)
        processor = member(member.Config.model_validate({"id": "bench", **settings}))
        processor.source_id = _SOURCE
        try:

            def work() -> list[list[Block]]:
                return [list(processor.process(iter([block]))) for block in blocks]

            made = work()  # starts engines, compiles kernels and scripts
            assert sum(block.rows for group in made for block in group), f"{kind} returned nothing"
            return self._time(kind, work, _children_seconds)
        finally:
            processor.close()

    def _time(self, name: str, work: Callable[[], object], children: Callable[[], float]) -> float:
        """Microseconds of CPU a row, of this process and its children, median of the rounds."""
        spent = []
        for _ in range(self.rounds):
            began = time.process_time() + children()
            work()
            spent.append(time.process_time() + children() - began)
        found = round(median(spent) / self.rows * 1e6, 3)
        self._say(f"  {name:<12} {found:>8.3f} µs a row")
        return found

    def _node(self, blocks: list[Block], scratch: Path) -> float | None:
        node = shutil.which("node")
        if node is None:
            self._say("  node is not installed: there is no ratio")
            return None
        form, events, program = JsonFormat(), scratch / "events.jsonl", scratch / "bench.js"
        with events.open("wb") as file:
            for block in blocks:
                file.write(form.batch(block, _SOURCE))
        program.write_text(_NODE % SCRIPT)
        made = subprocess.run(
            [node, str(program), str(events)], capture_output=True, text=True, timeout=600, check=True
        )
        seconds = min(float(line.split()[0]) for line in made.stdout.splitlines())
        found = round(seconds / self.rows * 1e6, 3)
        self._say(f"  {'node':<12} {found:>8.3f} µs a row, the best of three")
        return found


def _with_json(block: Block) -> Block:
    """The note as a JSON document with two members, one of them nested."""
    columns = tuple(replace(c, type=_JSON) if c.name == "note" else c for c in block.table.columns)
    table = replace(block.table, columns=columns, fingerprint="").with_fingerprint()
    strings = (block.struct("after") or {})["note"]
    documents = pc.binary_join_element_wise('{"text": "', strings, '", "at": {"page": 7}}', "")
    return Block(table, put(block.batch, "after.note", documents))


def _children_seconds() -> float:
    """CPU time of the processes that this one started and that still run, and of those that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(_seconds_of(pid) for pid in children())


def _seconds_of(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # the CPU clock of another process


_FILTER = ("filter", {"id": "all", "where": {"field": "after.id", "gte": 0}})
_SINK = ("blackhole", {"id": "nowhere"})


class FilterBench:
    """What a filter costs end to end: the same log into nothing through Spark, without and with it, in turns. It lets
    every event pass, so that sinks have the same work."""

    def __init__(self, *, rows: int, rounds: int, say: Callable[[str], None]) -> None:
        self.rows, self.rounds, self._say = rows, rounds, say

    def run(self, spark: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as scratch:
            material = Material.make(Path(scratch) / "log", self.rows)
            rates: dict[str, list[float]] = {"without": [], "with": []}
            for number in range(self.rounds):
                for name, chain in (("without", ()), ("with", (_FILTER,))):
                    directory = Path(scratch) / f"{name}-{number}"
                    rates[name].append(drain_log(spark, material, directory, _SINK, processors=chain))
        without, filtered = median(rates["without"]), median(rates["with"])
        found = {
            "end_to_end_events_per_s": round(without), "filter_end_to_end_events_per_s": round(filtered),
            "ratio_filter_end_to_end": round(filtered / without, 3),
        }  # fmt: skip
        self._say(f"  end to end   {found['ratio_filter_end_to_end']:>8.3f} of the speed without a filter")
        return found
