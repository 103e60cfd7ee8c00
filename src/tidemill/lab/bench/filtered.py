"""What a filter costs end to end: the same log into nothing through Spark, without and with it, in turns.

The filter lets every event pass, so that sinks have the same work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tidemill.lab.bench.drain import drain_log
from tidemill.lab.bench.material import Material

_FILTER = ("filter", {"id": "all", "where": {"field": "after.id", "gte": 0}})
_SINK = ("blackhole", {"id": "nowhere"})


class FilterBench:
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
