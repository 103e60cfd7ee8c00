"""What a filter costs end to end: the same log into nothing through Spark, without and with it, in turns.

The filter lets every event pass, so that sinks have the same work. The clock runs from the first checkpoint of a stream
to its last: the first batch starts Spark's processes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.config.spec import Batch, CommitPolicy
from tidemill.errors import DeliveryError
from tidemill.lab.bench.material import Material
from tidemill.log import LogReader
from tidemill.state import open_store
from tidemill.stream.loop import StreamLoop
from tidemill.stream.position.commit_policy import Policy
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.report import BatchReport

_BATCHES = 5  # of a run, the first of which does not count
_LIMIT_SECONDS = 600.0
_FILTER = ("filter", {"id": "all", "where": {"field": "after.id", "gte": 0}})
_SINK = ("blackhole", {"id": "nowhere"})


class FilterBench:
    def __init__(self, *, rows: int, rounds: int, say: Callable[[str], None]) -> None:
        self.rows, self.rounds, self._say = rows, rounds, say

    def run(self, spark: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as scratch:
            log = Material.make(Path(scratch) / "log", self.rows).log
            rates: dict[str, list[float]] = {"without": [], "with": []}
            for number in range(self.rounds):
                for name, chain in (("without", ()), ("with", (_FILTER,))):
                    rates[name].append(self._drain(spark, log, Path(scratch) / f"{name}-{number}", chain))
        without, filtered = median(rates["without"]), median(rates["with"])
        found = {
            "end_to_end_events_per_s": round(without), "filter_end_to_end_events_per_s": round(filtered),
            "ratio_filter_end_to_end": round(filtered / without, 3),
        }  # fmt: skip
        self._say(f"  end to end   {found['ratio_filter_end_to_end']:>8.3f} of the speed without a filter")
        return found

    def _drain(self, spark: Any, log: str, directory: Path, chain: Sequence[tuple[str, dict[str, Any]]]) -> float:
        """Events a second, first batch not counted."""
        directory.mkdir()
        times: list[tuple[float, int]] = []

        def note(report: BatchReport) -> None:
            times.append((time.monotonic(), report.end))

        policy = Policy.of("bench", CommitPolicy(mode="all"), {"nowhere": True})
        store, state = FileCheckpoints(FileConfig(), state_dir=directory), open_store(str(directory / "state.sqlite"))
        ledger = Ledger(policy, store, log, state=state, floor=lambda: 0)  # the next run reads the log again
        loop = StreamLoop(
            policy.groups[0], ledger, "bench", log, [_SINK], spark=spark, spark_dir=directory / "spark",
            batch=Batch(max_events=max(1, self.rows // _BATCHES), max_ms=1), processors=chain, on_batch=note,
        )  # fmt: skip
        tail, until = LogReader(log).tail().offset, time.monotonic() + _LIMIT_SECONDS
        loop.start()
        try:
            while loop.checkpoint.offset < tail:
                if not loop.running:
                    loop.await_end(5)
                if time.monotonic() > until:
                    raise DeliveryError("the bench run did not finish", where="filter")
                time.sleep(0.005)
        finally:
            loop.stop()
            state.close()
            store.close()
        (began, first), (ended, last) = times[0], times[-1]
        return (last - first) / (ended - began)
