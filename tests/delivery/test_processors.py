"""A worker killed around its processors: what they make of the events arrives once, for a log and for tables."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash.replay import Replay
from tests.delivery.test_kills import KEYS, Proof, _end, _normal
from tests.support.seed import sample
from tidemill.model.delivery import Tier

#: Where the worker is killed, one after the other.
POINTS = (
    ("worker.processing", "worker.written"), ("worker.processed", "stream.delivered"),
    ("worker.processed", "worker.writing"), ("stream.checkpointed", "worker.processing"),
)  # fmt: skip
#: Of orders only, one column called otherwise, one hidden.
CHAIN: list[tuple[str, dict[str, Any]]] = [
    ("filter", {"id": "orders", "where": {"field": "table", "eq": "public.orders"}}),
    ("rename", {"id": "names", "columns": {"note": "remark"}}),
    ("mask", {"id": "hide", "rules": [{"columns": ["weight"], "method": "nullify"}]}),
]
#: Of orders only, one column hidden, one added, of which only rows tell the type.
SCRIPT = """\
function process(ev) {
  if (ev.table !== "orders") return null;
  if (ev.after !== null) {
    ev.after.weight = null;
    ev.after.label = ev.after.customer.toUpperCase() + "/" + ev.after.id;
  }
  return ev;
}
"""
CHAINS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "ready-made": CHAIN, "javascript": [("javascript", {"id": "script", "inline": SCRIPT})],
}  # fmt: skip
SINKS = ("redis", "postgres")
KILLS = [
    *itertools.product(SINKS, POINTS, CHAINS),
    *itertools.product(SINKS, [("stream.structures_kept", "worker.processed")], ["javascript"]),
]


@pytest.fixture
def proof(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proof]:
    made = Proof(request.param, tmp_path)
    made.destination.start()
    yield made
    made.destination.stop()


def expected(proof: Proof, chain: str) -> dict[int, dict[str, Any]]:
    rows = proof.workload.tables["orders"]
    if chain == "javascript":
        return {k: {**row, "weight": None, "label": f"{row['customer'].upper()}/{k}"} for k, row in rows.items()}
    return {
        key: {
            ("remark" if name == "note" else name): None if name == "weight" else value for name, value in row.items()
        }
        for key, row in rows.items()
    }


@pytest.mark.parametrize(("proof", "places", "chain"), sample(KILLS), indirect=["proof"], ids=str)
def test_a_worker_killed_around_its_processors_loses_nothing(proof: Proof, places: tuple[str, ...], chain: str) -> None:
    proof.processors = CHAINS[chain]
    port, chances = proof.destination.port, Random(proof.seed)
    for place in places:
        time = 1 if place == "stream.structures_kept" else chances.randint(1, 4)
        ended, complaint = _end(proof.work(port, f"{place}:{time}"))
        assert ended == -signal.SIGKILL, f"not killed {place}: {complaint}"
    proof.finish(port)
    wanted = expected(proof, chain)
    if proof.destination.state:
        found = {row["id"]: row for row in proof.destination.rows("orders")}
    else:
        replay = Replay(KEYS)
        replay.take(proof.destination.events())
        assert replay.complaints == []
        assert replay.duplicates == 0
        assert not replay.tables["customers"]
        found = {row["id"]: row for row in replay.tables["orders"].values()}
    assert _normal(found, wanted) == _normal(wanted, wanted), f"seed {proof.seed}"


@pytest.mark.parametrize("proof", ["redis", "nats", "pgstream"], indirect=True)
def test_events_that_a_processor_adds_arrive_once_although_the_worker_is_killed(proof: Proof) -> None:
    proof.processors = [("twice", {"id": "two"})]
    port = proof.destination.port
    for place in ("worker.writing:3", "worker.written:2"):
        ended, complaint = _end(proof.work(port, place))
        assert ended == -signal.SIGKILL, complaint
    proof.finish(port)
    found = Counter(event["event_id"] for event in proof.destination.events())
    assert proof.sink().tier is Tier.EFFECTIVELY_ONCE
    assert set(found.values()) == {1}
    whole = {identity for identity in found if "." not in identity.rpartition(":")[2]}
    assert len(whole) == proof.workload.events
    truncates = 1  # processors do not see it
    assert len(found) == 2 * proof.workload.events - truncates
