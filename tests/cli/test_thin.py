"""Commands parse, call and render: what they do is in `service/`, where other faces find it too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tidemill import cli

MODULES = sorted(Path(cli.__path__[0]).glob("*.py"))
OPENING = {
    "open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "open_file", "replace_file", "connect",
    "build_checkpoints", "build_state", "build_source", "build_sink",
}  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_command_opens_no_file_no_database_and_no_log(module: Path) -> None:
    calls = [node.func for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    names = [call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls]
    assert [name for name in names if name in OPENING] == []
