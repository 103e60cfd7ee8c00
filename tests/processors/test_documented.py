"""What docs/processors/ and the examples show does what it says."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill import config
from tidemill.config import Pipeline
from tidemill.model.block import Block, Op
from tidemill.model.derived import with_column
from tidemill.processors.javascript import JavascriptConfig, JavascriptProcessor
from tidemill.service.trial.process_trial import Trial, try_processors

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "processors"
SAMPLE = """\
{"table": "orders", "after": {"id": 1, "status": "new", "price": 2.5, "quantity": 2, "country": "CH", "note": "x"}}
{"table": "orders", "after": {"id": 2, "status": "test", "price": 2.5, "quantity": 2, "country": "CH", "note": "x"}}
{"table": "orders", "after": {"id": 3, "status": "new", "price": 900.0, "quantity": 2, "country": "XX", "note": "x"}}
{"table": "orders", "op": "delete", "before": {"id": 4, "status": "new", "price": 1, "quantity": 1, "country": "CH"}}
"""


def fence(page: str, language: str, number: int = 0) -> str:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", (PAGES / page).read_text(), re.M | re.S)
    return found[number]


def tried(text: str, directory: Path) -> Trial:
    file, events = directory / "pipeline.yaml", directory / "events.jsonl"
    file.write_text(text)
    events.write_text(SAMPLE)
    return try_processors(_pipeline(file), sample=events)


def _pipeline(file: Path) -> Pipeline:
    (pipeline,) = config.load(file, {"SHOP_DSN": "postgresql://u:p@127.0.0.1/shop"})
    return pipeline


def after(trial: Trial) -> list[Any]:
    return [event.made[0]["after"] if event.made else event.outcome for event in trial.events]


def test_the_script_of_the_page_adds_drops_and_routes(tmp_path: Path) -> None:
    trial = tried(fence("javascript.md", "yaml"), tmp_path)
    assert [event.outcome for event in trial.events] == ["changed", "dropped", "changed", "changed"]
    assert trial.events[3].made[0]["before"]["total"] is None, "all rows of a table have its columns"
    assert [row["total"] for row in after(trial)[::2]] == [5, 1800]
    assert trial.events[2].made[0]["route"] == {"topic": "large-orders"}


def test_the_script_of_the_page_makes_a_delete_of_an_update(tmp_path: Path) -> None:
    processor = JavascriptProcessor(JavascriptConfig(id="archive", inline=fence("javascript.md", "js")))
    columns = [replace(c, name="archived") if c.name == "paid" else c for c in make_table().columns]
    table = replace(make_table(), columns=tuple(columns)).with_fingerprint()
    block = make_block(2, ops=Op.UPDATE, table=make_table())
    images = [pa.StructArray.from_arrays(block.batch.column("after").flatten(), fields=list(table.arrow_struct()))]
    [made] = processor.process(iter([Block(table, with_column(block, "after", images[0]).batch)]))
    processor.close()
    assert made.batch.column("op").to_pylist() == [Op.DELETE, Op.UPDATE]
    assert (made.batch.column("after")[0].as_py(), made.batch.column("after")[1].as_py()["id"]) == (None, 1)


def test_the_query_of_the_page_joins_filters_and_computes(tmp_path: Path) -> None:
    (tmp_path / "regions.csv").write_text("code,name\nCH,Alps\n")
    text = fence("sql.md", "yaml").replace("/etc/shop/regions.csv", str(tmp_path / "regions.csv"))
    trial = tried(text, tmp_path)
    first, second, third, gone = after(trial)
    assert (first["total"], first["region"], "note" in first) == (5.0, "Alps", False)
    assert second == "dropped"
    assert third["region"] == "elsewhere"
    assert gone is None
    assert trial.events[3].made[0]["before"]["region"] == "Alps"


def test_the_functions_of_the_page_filter_and_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "upper.py").write_text(fence("python.md", "python", 0))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "processors.py").write_text(
        fence("python.md", "python", 1).replace("def process(", "def check(")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trial = tried(fence("python.md", "yaml").replace("file: upper.py", f"file: {tmp_path}/upper.py"), tmp_path)
    first, second, third, gone = after(trial)
    assert (first["status"], second, third["status"], gone) == ("NEW", "dropped", "NEW", None)


@pytest.mark.parametrize("name", ["postgres-javascript", "postgres-sql", "postgres-python"])
def test_the_examples_process_events(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "regions.csv").write_text("code,name\nCH,Alps\n")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")  # they name their scripts as seen from the project's root
    monkeypatch.chdir(tmp_path)
    trial = tried((ROOT / "examples" / f"{name}.yaml").read_text(), tmp_path)
    assert trial.events[0].outcome == "changed"
    assert not [event.reason for event in trial.events if event.outcome == "failed"]
