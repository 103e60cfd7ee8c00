"""What more lanes bring: a prepared log through Spark into a sink that only encodes, and into one that waits.

Lanes that encode share the machine's cores. Lanes that wait for a server do not, and add up as far as it goes along.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tidemill.lab.bench.drain import Spec, drain_log
from tidemill.lab.bench.material import Material
from tidemill.lab.servers.http_receiver import Sponge

_EVENTS = 500  # of a request
_ANSWER_SECONDS = 0.02


class LanesBench:
    """`rows` go to `blackhole`, a fifth of them to `http`, one request at a time in each lane."""

    def __init__(self, *, rows: int, rounds: int, lanes: Sequence[int], say: Callable[[str], None]) -> None:
        self.rows, self.rounds, self._lanes, self._say = rows, rounds, lanes, say

    def run(self, spark: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as scratch, Sponge(delay=_ANSWER_SECONDS) as server:
            place = Path(scratch)
            waits = {"url": server.url, "mode": "batch", "max_events": _EVENTS, "concurrency": 1}
            chosen: dict[str, tuple[Spec, Material]] = {
                "blackhole": (("blackhole", {"id": "out"}), Material.make(place / "log", self.rows)),
                "http": (("http", {"id": "out", **waits}), Material.make(place / "fewer", self.rows // 5)),
            }
            rates: dict[str, dict[str, float]] = {}
            for name, (sink, material) in chosen.items():
                found: dict[int, list[float]] = {lanes: [] for lanes in self._lanes}
                for number in range(self.rounds):
                    for lanes in self._lanes:
                        directory = place / f"{name}-{lanes}-{number}"
                        found[lanes].append(drain_log(spark, material, directory, sink, lanes=lanes))
                        self._say(f"  {name:<9} {lanes} lanes {found[lanes][-1]:>10,.0f} events/s")
                rates[name] = {str(lanes): round(median(values)) for lanes, values in found.items()}
        titles = {
            "blackhole": "blackhole: encoding only",
            "http": f"http: {_EVENTS} events a request, answered after {_ANSWER_SECONDS * 1000:.0f} ms",
        }
        return {"rows": self.rows, "rounds": self.rounds, "titles": titles, "lanes": rates}
