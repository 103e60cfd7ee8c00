"""Every command that an error, a hint or a page names exists, with the options it is named with."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tidemill.cli.main import COMMANDS, module_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Up to where a sentence or a quotation goes on. A placeholder of an f-string stands as "…".
COMMAND = re.compile(r"(?<![\w./\"-])\btidemill ([a-z][\w|\\-]*(?: (?!tidemill )[^\s`\"';()#]+)*)")
# Names inside PostgreSQL, not commands.
NAMES = ("row", "set", "exact", "pgstream")


def texts_of(module: Path) -> Iterator[str]:
    """Its strings, those in pieces as one, without docstrings."""
    tree = ast.parse(module.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docstrings | inside):
            yield node.value


def named() -> Iterator[tuple[str, str]]:
    for module in sorted((ROOT / "src").rglob("*.py")):
        for text in texts_of(module):
            for found in COMMAND.findall(text):
                if found.split()[0] not in NAMES:
                    yield str(module.relative_to(ROOT)), found
    for page in PAGES:
        text = page.read_text()
        code: list[str] = re.findall(r"```(?:sh|console|bash)\n(.*?)```", text, re.DOTALL)
        code += re.findall(r"`(tidemill [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for snippet in code:
            for found in COMMAND.findall(snippet):
                yield str(page.relative_to(ROOT)), found


@pytest.mark.parametrize(("where", "line"), sorted(set(named())))
def test_a_command_that_is_named_exists_with_its_options(where: str, line: str) -> None:
    first, *rest = re.split(r"[.:,] ", line)[0].split()
    assert first in COMMANDS, f"{where} names `tidemill {line}`"
    command: Any = get_command(importlib.import_module(module_of(first)).app)
    options = {"--help", "--json"} | opts(command)
    if hasattr(command, "commands") and rest and not rest[0].startswith(("-", "…")):
        for one in rest[0].replace("\\", "").rstrip(".,:").split("|"):
            assert one in command.commands, f"{where} names `tidemill {line}`"
            options |= opts(command.commands[one])
    unknown = {word.rstrip(".,:") for word in rest if re.match(r"--?[a-z]", word)} - options
    assert not unknown, f"{where} names `tidemill {line}`"


def opts(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_search_finds_what_errors_advise() -> None:
    """Or all of the above would pass on nothing."""
    found = set(named())
    assert any(line.startswith("resync FILE") for where, line in found if where.startswith("src"))
    assert any("--sink" in line for _, line in found)
    assert len(found) > 50
