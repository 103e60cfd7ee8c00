"""Reads YAML into plain data and remembers the line of every path. Several documents in a file are several pipelines.

Stricter than PyYAML: a key given twice is refused, keys are text, and scalars follow YAML 1.2 (`on` and `no` are
words, `12:30` is not a number), as in the other tools that read such documents.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml
from yaml.reader import ReaderError

from tidemill.config.expand import Expanded, expand
from tidemill.config.problem import DocumentError, Path, Problem, dotted_path
from tidemill.errors import ConfigError

_MAX_DIGITS = 100
_HALF = re.compile("[\ud800-\udfff]")  # an escape can write one; UTF-8, so JSON and every store, has none
_MAX_NODES = 100_000  # far above any real document: stops aliases that multiply themselves

_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_SCALARS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null"))


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. `lines` maps a path to the line where its key (or list item) stands; `variables` maps one that
    the environment gave to the variable's name."""

    file: str
    data: Any
    lines: Mapping[Path, int]
    variables: Mapping[Path, str] = field(default_factory=dict)

    @property
    def command_file(self) -> str | None:
        """The file, for commands that name it. None for what was posted, or given by variables: it has no lines."""
        return self.file if self.lines.get((), 0) else None

    @property
    def posted(self) -> bool:
        """Whether a server was given it over its API (posted.py)."""
        return self.lines.get(()) == 0

    def line(self, path: Path) -> int:
        """The line of the path, or of the nearest thing around it that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, path: Path, what: str, fix: str = "") -> Problem:
        variable = self.variable(path)
        if variable is not None:
            return Problem(variable, 0, path, what, fix)
        return Problem(self.file, self.line(path) if self.lines else 0, path, what, fix)

    def variable(self, path: Path) -> str | None:
        """That gave what stands at the path, or around it."""
        longest = next((path[:size] for size in range(len(path), 0, -1) if path[:size] in self.variables), None)
        if longest is None or any(path[:size] in self.lines for size in range(len(longest) + 1, len(path) + 1)):
            return None
        return self.variables[longest]

    def origins(self) -> dict[str, str]:
        """Of every value that was given: the variable, or the file and the line. What is not here is a default."""
        found = {}
        for path in _leaves(self.data, ()):
            variable = self.variable(path)
            found[dotted_path(path)] = variable if variable is not None else f"{self.file}:{self.line(path)}"
        return found


def read(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> list[Document]:
    file = FilePath(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("the file is not UTF-8 text", where=str(file), fix=f"Byte {error.start} is wrong.") from error
    except OSError as error:
        raise ConfigError(
            f"the file cannot be read: {error.strerror or error}", where=str(file), fix="Check the path."
        ) from error
    return parse(text, str(file), os.environ if environment is None else environment)


def parse(text: str, file: str, environment: Mapping[str, str]) -> list[Document]:
    """Documents that are not empty; `DocumentError` if variables are missing or the text is not YAML."""
    expanded = expand(text, environment, file)
    if expanded.problems:
        raise DocumentError.of(expanded.problems)
    try:
        documents = list(_build(expanded, file))
    except yaml.YAMLError as error:
        raise DocumentError.of([_syntax(error, expanded, file)]) from error
    if not documents:
        raise ConfigError("the file holds no pipeline", where=file, fix="It needs `metadata:` and `spec:`.")
    return documents


def plain_value(text: str) -> Any:
    """A scalar as YAML 1.2 reads it: a number, true, null, else the text itself."""
    loader = _Loader("")
    try:
        tag: Any = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        return loader.construct_object(yaml.ScalarNode(tag, text))
    except _TooLarge:
        return text  # what it stands for says that it should be something else
    finally:
        loader.dispose()


def _leaves(data: Any, path: Path) -> Iterator[Path]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    if path and not inner:
        yield path
    for step, value in inner:
        yield from _leaves(value, (*path, step))


def _build(expanded: Expanded, file: str) -> Iterator[Document]:
    """A loader looks at every character when it is made, and may raise then already."""
    loader = _Loader(expanded.text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None and (document := _Builder(file, expanded, loader).document(node)):
                yield document
    finally:
        loader.dispose()


class _TooLarge(Exception):
    """A whole number that JSON and state stores would not keep exactly."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own shape)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):  # fmt: skip
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first))


def _construct_int(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    base = 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10
    number = int(text, base) if len(text) <= _MAX_DIGITS else 0
    if len(text) > _MAX_DIGITS or not -(2**63) <= number < 2**63:
        raise _TooLarge
    return number


def _construct_float(_: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = node.value.lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


class _Builder:
    """Walks the node tree once: data, lines, and what is wrong with the keys."""

    def __init__(self, file: str, expanded: Expanded, loader: _Loader) -> None:
        self.file = file
        self.expanded = expanded
        self.loader = loader
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self.open: set[int] = set()
        self.nodes = 0

    def document(self, node: yaml.Node) -> Document | None:
        self.lines[()] = self._line(node)
        data = self._value(node, ())
        if self.problems:
            raise DocumentError.of(self.problems)
        return None if data is None else Document(self.file, data, self.lines)

    def _line(self, node: yaml.Node) -> int:
        return self.expanded.line(node.start_mark.line)

    def _problem(self, node: yaml.Node, path: Path, what: str, fix: str) -> None:
        self.problems.append(Problem(self.file, self._line(node), path, what, fix))

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self.nodes += 1
        if id(node) in self.open or self.nodes > _MAX_NODES:
            what = "an alias (*name) contains itself" if id(node) in self.open else "the document is too large"
            raise DocumentError.of([Problem(self.file, self._line(node), path, what, "Use fewer aliases.")])
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
            self._problem(node, path, f"the tag {node.tag} means nothing here", "Remove the tag.")
        self.open.add(id(node))
        try:
            match node:
                case yaml.MappingNode():
                    return self._mapping(node, path)
                case yaml.SequenceNode():
                    items = []
                    for index, item in enumerate(node.value):
                        self.lines[(*path, index)] = self._line(item)
                        items.append(self._value(item, (*path, index)))
                    return items
                case _:
                    return self._scalar(node, path)
        finally:
            self.open.discard(id(node))

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        if node.tag not in _SCALARS:
            self._problem(node, path, f"the tag {node.tag} means nothing here", "Remove the tag.")
        elif _HALF.search(node.value):
            self._problem(node, path, "the text has half a character (a surrogate)", "Write the whole character.")
        else:
            try:
                return self.loader.construct_object(node)
            except _TooLarge:
                self._problem(node, path, "a number of more than 64 bits", "Write a smaller one.")
            except (ValueError, KeyError):
                self._problem(node, path, f"this is not what the tag {node.tag} says", "Remove the tag.")
        return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                self._problem(key_node, path, "a key is not text", "Put it in quotes.")
                continue
            key = str(key_node.value)
            if _HALF.search(key):
                self._problem(key_node, path, "a key has half a character (a surrogate)", "Write the whole character.")
                continue
            if key in data:
                first = self.lines[(*path, key)]
                self._problem(
                    key_node, (*path, key), f'the key "{key}" is given twice', f"Line {first} has it already."
                )
                continue
            self.lines[(*path, key)] = self._line(key_node)
            data[key] = self._value(value_node, (*path, key))
        for source in merged:
            if not isinstance(source, yaml.MappingNode):
                self._problem(source, path, "<< does not name a mapping", "Merge only mappings: <<: *name")
                continue
            self._merge(source, path, data)
        return data

    def _merge(self, source: yaml.MappingNode, path: Path, data: dict[str, Any]) -> None:
        """Keys that are written out win over merged ones, and keep their lines."""
        own = {place: line for place, line in self.lines.items() if place[: len(path)] == path}
        inherited = self._value(source, path)
        for key, value in inherited.items():
            if key not in data:
                data[key] = value
        kept = {place: line for place, line in own.items() if len(place) == len(path) or place[len(path)] in data}
        self.lines.update(kept)


def _syntax(error: yaml.YAMLError, expanded: Expanded, file: str) -> Problem:
    if isinstance(error, ReaderError):
        line = expanded.line(expanded.text.count("\n", 0, error.position))
        what = f"this is not YAML: a character that cannot be shown, U+{error.character:04X}"
        return Problem(file, line, (), what, "Remove it.")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = expanded.line(mark.line) if mark else 0
    what = getattr(error, "problem", None) or str(error)
    fix = "Check the indentation and the quotes of this line."
    source = expanded.text.split("\n")[mark.line] if mark else ""
    if re.search(r"\$\{[^}\"']*\}", source):
        fix = 'Inside { } and [ ], YAML wants templates in quotes: "${source.table}".'
    return Problem(file, line, (), f"this is not YAML: {what}", fix)
