"""What the documentation shows must work: every pipeline loads, the example sink delivers."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.blocks import make_block
from tests.support.members import built_in
from tidemill import config
from tidemill.contracts import Outcome
from tidemill.formats.json import JsonFormat
from tidemill.model.delivery import Delivery

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/**/*.yaml"))
ENVIRONMENT = {
    "SHOP_DSN": "postgresql://user:secret@localhost/shop",
    "MYSQL_DSN": "mysql://user:secret@localhost/shop",
    "REDIS_URI": "",
}


def _fences(language: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{page.relative_to(ROOT)}#{number}")
        for page in PAGES
        for number, text in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S), start=1)
    ]


@pytest.mark.parametrize("text", _fences("yaml"))
def test_every_pipeline_in_the_docs_loads(text: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    assert config.load(file, ENVIRONMENT)


def test_the_variables_of_the_page_of_the_environment_give_a_pipeline() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    [block] = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
    pipeline = config.load_environment(dict(re.findall(r"(TIDEMILL__\w+)=(\S+)", block)))
    assert [*pipeline.spec.source.config.tables] == ["public.orders", "public.customers"]  # type: ignore[attr-defined]
    assert pipeline.spec.sinks[0].type == "files"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_loads_and_says_how_it_is_run(path: Path) -> None:
    assert config.load(path, ENVIRONMENT)
    assert f"tidemill run examples/{path.name}" in path.read_text()


def test_every_source_and_sink_has_an_example() -> None:
    specs = [pipeline.spec for path in EXAMPLES for pipeline in config.load(path, ENVIRONMENT)]
    assert {spec.source.type for spec in specs} == set(built_in("sources"))
    # A blackhole is for measuring.
    assert {sink.type for spec in specs for sink in spec.sinks} == set(built_in("sinks")) - {"blackhole"}


def test_the_sink_in_the_contributing_guide_delivers(tmp_path: Path) -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    source = next(code for code in re.findall(r"```python\n(.*?)```", guide, re.S) if "component =" in code)
    assert not re.search(r"\b_\w+ import|\._\w+", source.partition("class ")[0])  # nothing private is needed
    module = _module("append", source, tmp_path)
    sink = module.component(module.component.Config(id="lines", directory=tmp_path))
    block = make_block(10, offsets=range(10))
    delivery = Delivery("pipeline", "shop", 0, 10, lane=2, lanes=4, blocks=lambda: iter([block]))
    receipt = sink.write(delivery)
    assert receipt.ok
    assert receipt.events == 10
    written = (tmp_path / "lane-2.jsonl").read_bytes()
    assert receipt.bytes == len(written)
    assert [orjson.loads(line)["offset"] for line in written.splitlines()] == list(range(10))
    assert [check.outcome for check in sink.doctor()] == [Outcome.PASS]
    sink.close()


def test_the_page_of_events_names_exactly_the_fields_there_are() -> None:
    page = (ROOT / "docs" / "events.md").read_text().partition("## DDL")[0]
    cells = re.findall(r"^\| (`.*?) \|", page, re.M)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    event = orjson.loads(JsonFormat().encode(make_block(1), "shop")[0].as_py())
    assert named - {"unchanged"} == event.keys()


@pytest.mark.parametrize("family", ["sources", "sinks", "formats"])
def test_the_readme_names_everything_there_is(family: str) -> None:
    text = (ROOT / "README.md").read_text().partition("## What there is")[2].partition("## What it promises")[0]
    text = text.lower()
    assert [name for name in built_in(family) if f"`{name}`" not in text and family != "formats"] == []
    assert [name for name in built_in(family) if name not in text] == []


def test_every_sink_has_a_page() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "sinks").glob("*.md")}
    assert set(built_in("sinks")) - pages == {"blackhole"}  # a sentence on the page of stdout


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.M)}
    assert named - targets == set()


@pytest.mark.slow  # `make check` asks the same
def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, "scripts/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def _module(name: str, source: str, folder: Path) -> Any:
    file = folder / f"{name}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
