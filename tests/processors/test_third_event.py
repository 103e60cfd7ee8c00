"""Code of the user's that fails on the third event only: that event is named, and all the others arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.blocks import make_block
from tidemill.errors import ProcessingError
from tidemill.stream.lane.chain import Chain

pytestmark = pytest.mark.slow

ROWS = 6
ONE = "function process(ev) {\n  if (ev.after.id === 2) ev.after.none.x = 1;\n  return ev;\n}"
BATCH = "function processBatch(all) {\n  for (const ev of all) if (ev.after.id === 2) null.x;\n  return all;\n}"
COUNTING = "let n = 0;\nfunction process(ev) {\n  if (++n === 3) throw new Error('x');\n  return ev;\n}"
QUERY = "SELECT *, CASE WHEN id = 2 THEN CAST(customer AS int) END AS n FROM events"
#: The processor, its settings, and what the reason names.
FAILING: dict[str, tuple[str, dict[str, Any], str]] = {
    "process": ("javascript", {"inline": ONE}, "code.js:2"),
    "processBatch": ("javascript", {"inline": BATCH}, "code.js:2"),
    "the third of its engine": ("javascript", {"inline": COUNTING}, "code.js:3"),
    "python": ("python", {"style": "event", "file": "code.py"}, "code.py:3"),
    "sql": ("sql", {"query": QUERY}, "in the query"),
}
PYTHON = "def process(event):\n    if event['after']['id'] == 2:\n        raise ValueError('no')\n    return event\n"


@pytest.fixture(params=FAILING)
def spec(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any, str]:
    monkeypatch.chdir(tmp_path)
    Path("code.py").write_text(PYTHON)
    kind, settings, place = FAILING[request.param]
    return kind, {"id": "code", **settings}, place


def test_a_failure_on_the_third_event_stops_the_pipeline_with_its_line(spec: tuple[str, Any, str]) -> None:
    kind, settings, place = spec
    chain, block = Chain([(kind, settings)], "shop"), make_block(ROWS)
    with pytest.raises(ProcessingError) as caught:
        list(chain.begin({}).blocks(iter([block])))
    chain.close()
    assert list(caught.value.reasons) == [int(block.offsets()[2])]
    assert place in caught.value.reasons[int(block.offsets()[2])]
    assert caught.value.where == 'processor "code"'


@pytest.mark.parametrize("on_error", ["dead_letter", "skip"])
def test_a_failure_on_the_third_event_leaves_all_others_in_order(spec: tuple[str, Any, str], on_error: str) -> None:
    kind, settings, place = spec
    chain, block = Chain([(kind, {**settings, "on_error": on_error})], "shop"), make_block(ROWS)
    run = chain.begin({})
    made = list(run.blocks(iter([block])))
    chain.close()
    third = int(block.offsets()[2])
    assert [offset for each in made for offset in each.offsets().tolist()] == [
        offset for offset in block.offsets().tolist() if offset != third
    ]
    [count] = run.counts
    assert (count.dead_letters, count.skipped) == ((1, 0) if on_error == "dead_letter" else (0, 1))
    if on_error == "dead_letter":
        assert list(run.failures) == [third]
        assert place in run.failures[third].reason
