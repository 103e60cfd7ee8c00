"""Whether a function of the user's is there and compiles, found out without running any of his code."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from pathlib import Path


class CodeProblem(Exception):
    """What is wrong, with the file and line; `fix` says what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def check_function(file: Path | None, function: str) -> None:
    """`function` is a name in `file`, or `package.module:name`."""
    module, _, name = function.rpartition(":")
    path = file if file is not None else _find(module)
    if path is None:
        return  # compiled: nothing can be read of it
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise CodeProblem(
            f"{path} cannot be read: {error.strerror}", "Give a file that exists on every machine that runs workers."
        ) from error
    except SyntaxError as error:
        line = f" in `{error.text.strip()[:120]}`" if error.text and error.text.strip() else ""
        raise CodeProblem(
            f"{path.name} does not compile: {error.msg}{line} at {path.name}:{error.lineno}", "Mend that line."
        ) from error
    except ValueError as error:  # a NUL in it
        raise CodeProblem(f"{path.name} does not compile: {error}", "Give a Python file.") from error
    found = set(_names(tree))
    if name not in found and "*" not in found:
        there = ", ".join(sorted(each for each in found if not each.startswith("_"))) or "nothing"
        raise CodeProblem(f"{path.name} has no function called {name}", f"It defines: {there}.")


def _names(tree: ast.Module) -> list[str]:
    """Names that the module has at its top level, whatever is behind an `if` or a `try` included; "*" where an import
    may bring any."""
    found: list[str] = []
    for node in _statements(tree.body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.append(node.name)
            case ast.Import() | ast.ImportFrom():
                found += [alias.asname or alias.name.partition(".")[0] for alias in node.names]
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return found


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    found = []
    for node in body:
        found.append(node)
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            parts = [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            found += [inner for part in parts for inner in _statements(part)]
    return found


def _find(module: str) -> Path | None:
    """The module's file, by the path that imports go; importing its package would run code. None for one that has no
    source."""
    places: list[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    for count in range(1, len(module.split(".")) + 1):
        name = ".".join(module.split(".")[:count])
        spec = next((s for each in sys.meta_path if (s := each.find_spec(name, places)) is not None), None)
        if spec is None:
            raise CodeProblem(
                f"there is no module {name}", "Install it, or set PYTHONPATH, here and where the workers run."
            )
        places = list(spec.submodule_search_locations or ())
    assert spec is not None
    return Path(spec.origin) if spec.origin is not None and spec.origin.endswith(".py") else None
