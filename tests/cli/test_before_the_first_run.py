"""What the commands about schemas say of a pipeline that never ran: lists are empty, what is named is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.terminal import Terminal

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://nobody@127.0.0.1:1/none", tables: [public.orders]}}}}
  sinks: [{{type: stdout, config: {{id: out}}}}]
  state_dir: {state}
"""
LISTS: dict[str, tuple[dict[str, Any], str]] = {
    "ddl ls": ({"changes": []}, "No schema change has come to the sinks of orders yet"),
    "ddl plan": ({"changes": []}, "No schema change waits in the log of orders."),
    "schemas ls": ({"schemas": []}, "orders has met no table yet"),
    "schemas scan": ({"tables": 0, "findings": [], "without_baseline": []}, "0 tables compared"),
    "sensing ls": ({"schemas": []}, "orders has looked at no events yet"),
    "sensing stats": ({"offset": 0, "events": 0, "sampled": 0, "tables": []}, "No events were looked at yet."),
    "drift ls": ({"drift": []}, "orders compares no events"),
}
NAMED = [
    ("ddl show", "1"), ("ddl approve", "1"), ("ddl reject", "1"), ("ddl apply", "1"), ("schemas show", "orders"),
    ("schemas versions", "orders"), ("schemas diff", "orders", "1", "2"), ("schemas at", "orders", "--sequence", "1"),
    ("schemas scan", "--accept", "orders", "--yes"), ("sensing show", "orders"), ("sensing json-schema", "orders"),
    ("drift accept", "orders", "--yes"),
]  # fmt: skip


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT.format(state=tmp_path / "state"))
    return file


@pytest.mark.parametrize("command", LISTS)
def test_a_list_is_empty_and_says_so_and_nothing_is_made(tidemill: Terminal, path: Path, command: str) -> None:
    listed, said = LISTS[command]
    shown = tidemill(*command.split(), path, "--json")
    assert (shown.code, shown.json, shown.err) == (0, {"pipeline": "orders", **listed}, "")
    told = tidemill(*command.split(), path)
    assert (told.code, said in told.out, told.err) == (0, True, "")
    assert [each.name for each in path.parent.iterdir()] == ["orders.yaml"]


@pytest.mark.parametrize(("command", "arguments"), [(first, rest) for first, *rest in NAMED])
def test_what_is_asked_for_by_name_is_refused_with_what_to_do(
    tidemill: Terminal, path: Path, command: str, arguments: list[str]
) -> None:
    refused = tidemill(*command.split(), path, *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert "yet: there is no" in refused.err
    assert "run" in refused.err.lower().splitlines()[-1]


@pytest.mark.parametrize("command", LISTS)
def test_a_document_that_cannot_be_read_is_refused(tidemill: Terminal, path: Path, command: str) -> None:
    path.write_text("metadata: [")
    assert tidemill(*command.split(), path).code == 2
    assert tidemill(*command.split(), path.with_name("nowhere.yaml")).code == 2
