"""Every command that an error, a hint or a page names exists, with the options it is named with."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
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


#: Where no command can stand: modules that only import from the package are not parsed.
MENTION = re.compile(r"\btidemill[ \"'\\{]")


def texts_of(module: Path) -> Iterator[str]:
    """Its strings, those in pieces as one, without docstrings."""
    source = module.read_text()
    if not MENTION.search(source):
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):  # what is left out is met before its parts
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr):
            left_out.add(id(node.body[0].value))
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


@cache
def named() -> frozenset[tuple[str, str]]:
    return frozenset(_named())


def _named() -> Iterator[tuple[str, str]]:
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


def test_a_command_that_is_named_exists_with_its_options() -> None:
    wrong = [f"{where}: tidemill {line}: {lost}" for where, line in sorted(named()) if (lost := missing(line))]
    assert wrong == []


def missing(line: str) -> list[str]:
    """Words of a command line that are no command, none of its commands, or none of its options."""
    first, *rest = re.split(r"[.:,] ", line)[0].split()
    if first not in COMMANDS:
        return [first]
    command = load(first)
    options = {"--help", "--json"} | opts(command)
    lost = []
    if hasattr(command, "commands") and rest and not rest[0].startswith(("-", "…")):
        names = rest[0].replace("\\", "").rstrip(".,:").split("|")
        lost = [name for name in names if name not in command.commands]
        options |= {each for name in names if name not in lost for each in opts(command.commands[name])}
    return lost + sorted({word.rstrip(".,:") for word in rest if re.match(r"--?[a-z]", word)} - options)


@cache
def load(name: str) -> Any:
    return get_command(importlib.import_module(module_of(name)).app)


def opts(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_search_finds_what_errors_advise() -> None:
    """Or all of the above would pass on nothing."""
    found = named()
    assert any(line.startswith("recover FILE") for where, line in found if where.startswith("src"))
    assert any("--sink" in line for _, line in found)
    assert len(found) > 50


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("checkpoints show FILE", []),
        ("checkpoint show FILE", ["checkpoint"]),
        ("checkpoints shwo|set FILE --nothing", ["shwo", "--nothing"]),
        ("validate FILE --jsn", ["--jsn"]),
    ],
)
def test_the_search_finds_a_command_and_an_option_that_do_not_exist(line: str, lost: list[str]) -> None:
    assert missing(line) == lost
