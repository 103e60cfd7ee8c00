"""Every sink from a prepared log, beside the plainest client loop of its system that sends bytes made beforehand.

Neither a database nor Spark is in the way: a sink's `write` is called as a worker calls it. Sink and plain loop take
turns, each round into a new topic, table or folder, and medians are compared.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tidemill import registry
from tidemill.contracts import Format, Sink
from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.lab.bench.baselines import BASELINES, PULLED, Baseline
from tidemill.lab.bench.material import Material

_BATCH = 200_000


class SinksBench:
    """`only` names the sinks to measure; all of them if it is empty."""

    def __init__(self, *, rows: int, rounds: int, only: Sequence[str], say: Callable[[str], None]) -> None:
        self.rows, self.rounds, self._say = rows, rounds, say
        for name in only:
            if name not in BASELINES:
                raise ConfigError(f'"{name}" is not measured', fix=f"There are: {', '.join(sorted(BASELINES))}.")
        self.only = list(only) or [name for name in registry.names("sinks") if name in BASELINES]

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as scratch:
            self._say(f"making {self.rows:,} events")
            material = Material.make(Path(scratch) / "log", self.rows)
            formats = {} if len(self.only) == 1 else self._formats(material)
            sinks = {}
            for name in self.only:
                try:
                    sinks[name] = self._sink(name, BASELINES[name](Path(scratch) / name, material), material)
                except EnvironmentProblem as problem:
                    self._say(f"  {name:<12} cannot be measured here: {problem.what}")
        return {"rows": self.rows, "rounds": self.rounds, "sinks": sinks, "formats": formats}

    def _formats(self, material: Material) -> dict[str, Any]:
        found = {}
        blocks = material.blocks()
        for name in registry.names("formats"):
            form: Format = registry.load("formats", name)()
            whole = name in ("arrow", "parquet")  # one document per row is not how these are used
            encode = form.batch if whole else form.encode
            encode(blocks[0], "bench")
            spent = []
            for _ in range(self.rounds):
                began = time.process_time()
                for block in blocks:
                    encode(block, "bench")
                spent.append(time.process_time() - began)
            found[name] = {"us_per_row": round(median(spent) / self.rows * 1e6, 3)}
            self._say(f"  {name:<12} {found[name]['us_per_row']:>10.3f} µs a row")
        return found

    def _sink(self, name: str, baseline: Baseline, material: Material) -> dict[str, Any]:
        with baseline:
            ours, plain, encoding, pulls = [], [], [], []
            self._write(name, baseline, "warm", material)
            for number in range(self.rounds):
                plain.append(baseline.plain(f"plain{number}"))
                spent, encoded = self._write(name, baseline, f"ours{number}", material)
                ours.append(spent)
                encoding.append(encoded)
                if pulled := baseline.pulls(f"ours{number}", f"plain{number}"):
                    pulls.append(pulled)
            rate, limit = self.rows / median(ours), self.rows / median(plain)
        found = {
            "rows_per_s": round(rate), "ratio_plain_loop": round(rate / limit, 3),
            "plain_rows_per_s": round(limit), "plain_loop": baseline.loop,
            "encode_us_per_row": round(median(encoding) / self.rows * 1e6, 3),
            "write_us_per_row": round((median(ours) - median(encoding)) / self.rows * 1e6, 3),
        }  # fmt: skip
        self._say(f"  {name:<12} {rate:>10,.0f} rows/s, {found['ratio_plain_loop']:.2f} of {baseline.loop}")
        return found | self._pull(baseline, pulls)

    def _pull(self, baseline: Baseline, pulls: list[tuple[float, float]]) -> dict[str, Any]:
        if not pulls:
            return {}
        rate, limit = (self.rows / median(seconds) for seconds in zip(*pulls, strict=True))
        self._say(f"  {'pull and ack':<12} {rate:>10,.0f} rows/s, {rate / limit:.2f} of {baseline.pull_loop}")
        return {
            "pull_messages_per_s": round(rate), "pull_ratio_plain_loop": round(rate / limit, 3),
            "plain_pull_messages_per_s": round(limit), "pull_plain_loop": baseline.pull_loop, "pull_batch": PULLED,
        }  # fmt: skip

    def _write(self, name: str, baseline: Baseline, target: str, material: Material) -> tuple[float, float]:
        """Seconds in all, and of encoding. The first batch connects and makes tables or topics before the clock starts,
        as it does once in a pipeline that runs for days; the plain loops' clocks do not include that either."""
        kind = registry.load("sinks", name.partition(":")[0])
        sink: Sink = kind(kind.Config.model_validate({"id": target, **baseline.config(target)}))
        encoding = 0.0
        try:
            first, *rest = material.deliveries(_BATCH, pipeline=f"bench-{target}")
            sink.write(first)
            began = time.perf_counter()
            for delivery in rest:
                encoding += sink.write(delivery).encode_seconds
            return (time.perf_counter() - began) * self.rows / (self.rows - first.end), encoding
        finally:
            sink.close()
