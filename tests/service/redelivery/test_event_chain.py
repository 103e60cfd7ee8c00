"""A dead letter that is sent again passes the pipeline's processors as they are now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.support.blocks import make_block
from tidemill import config
from tidemill.dlq import DeadLetters
from tidemill.errors import Poisoned
from tidemill.model.delivery import Delivery
from tidemill.service.redelivery.resend import Redelivered, redeliver
from tidemill.stream.lane.poison import dead_letters_of

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://127.0.0.1:9/shop", tables: [public.orders]}}}}
  processors: {processors}
  sinks: [{{type: files, config: {{id: out, path: {directory}/out}}}}]
  dlq: {{}}
  state_dir: {directory}/state
"""


def replayed(directory: Path, *processors: dict[str, Any]) -> tuple[list[Redelivered], list[Any], DeadLetters]:
    """What became of the letter of event 3, and the events that the sink has then."""
    file = directory / "orders.yaml"
    file.write_text(DOCUMENT.format(processors=orjson.dumps(processors).decode(), directory=directory))
    (pipeline,) = config.load(file, {})
    (pipeline.state_path).mkdir(parents=True)
    store = DeadLetters(pipeline.dlq_path, pipeline.spec.dlq)
    captured = Delivery("orders", "shop", 0, 5, 0, 1, lambda: iter([make_block(5)]))
    store.put(dead_letters_of(Poisoned({3: "why"}), captured, "out", stages={3: "processor:p"}))
    outcome = list(redeliver(pipeline, store, store.dead_letters()))
    files = sorted((directory / "out").rglob("*.jsonl")) if (directory / "out").exists() else []
    return outcome, [orjson.loads(line) for each in files for line in each.read_bytes().splitlines()], store


def test_the_chain_runs_over_it_again(tmp_path: Path) -> None:
    drop = {"type": "drop", "id": "slim", "columns": ["note"]}
    (one,), (event,), store = replayed(tmp_path, drop)
    assert (one.error, one.dead_letter.stage) == ("", "processor:p")
    assert event["offset"] == 3
    assert "note" not in event["after"]
    assert store.dead_letters() == []


def test_a_letter_that_fails_again_stays_with_its_new_reason(tmp_path: Path) -> None:
    route = {"type": "route", "id": "r", "topic": "${after.note}", "on_error": "skip"}
    (one,), events, store = replayed(tmp_path, route)
    assert events == []
    assert "on_error is skip" in one.error
    (kept,) = store.dead_letters()
    assert (kept.attempts, kept.stage) == (2, "processor:p")


def test_a_letter_that_the_chain_drops_now_is_done(tmp_path: Path) -> None:
    outcome, events, store = replayed(tmp_path, {"type": "filter", "id": "f", "where": {"field": "id", "lt": 3}})
    assert [one.error for one in outcome] == [""]
    assert events == []
    assert store.dead_letters() == []
