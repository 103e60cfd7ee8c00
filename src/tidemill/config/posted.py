"""Documents that came over the API: JSON or YAML into plain data whose strings keep their `${VAR}`, and back into a
`Document` that is resolved as a file's is.

The data is what is stored, patched and shown to nobody; variables are expanded string by string each time it is loaded.
So a variable's value can never become structure, and a patched document keeps its references.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tidemill.config.document import Document, parse
from tidemill.config.expand import REFERENCE, expand
from tidemill.config.problem import DocumentError, Path, Problem
from tidemill.config.secrets import MASK
from tidemill.errors import ConfigError

# Stands for a reference while YAML is read, which would take its braces for a mapping. Private use in Unicode.
_PLACE = re.compile("\ue000(\\d+)\ue001")
_MASKED = re.compile(rf"^{re.escape(MASK)}$|[:=]{re.escape(MASK)}")
_PART = re.compile(r"[\w.-]{4,}")
_TELLING = 4  # characters of a value that is looked for inside other strings
_WHERE = "the document"
LONGEST_STRING, LONGEST_CODE = 8192, 128 << 10
"""Characters of a string, and of one that is code. What looks at strings takes longer than their length."""


def read_posted(text: str, *, json: bool) -> dict[str, Any]:
    """The one document of a request's body. `ConfigError` if it is none, or shows a masked secret where it should have
    one."""
    found = read_several(text, json=json)
    if len(found) != 1:
        raise ConfigError(
            f"there are {len(found)} documents in one request", where=_WHERE, fix="Send one pipeline at a time."
        )
    return found[0]


def read_several(text: str, *, json: bool = False) -> list[dict[str, Any]]:
    """Every document of a text, for who sends them one by one."""
    try:
        several = [_json(text)] if json else _yaml(text)
        for data in several:
            if not isinstance(data, dict):
                raise ConfigError("a pipeline is a mapping", where=_WHERE, fix="It needs `metadata:` and `spec:`.")
            _refuse_long(data)
            refuse_masks(data)
    except RecursionError:
        raise ConfigError("the document is nested too deeply", where=_WHERE, fix="No option needs that.") from None
    return several


def refuse_masks(data: Any) -> None:
    """A spec as the API shows it has `***` for its secrets: written back, it would replace them."""
    found: list[Path] = []

    def note(text: str, at: Path) -> str:
        if _MASKED.search(text):
            found.append(at)
        return text

    _map_strings(data, (), note)
    if found:
        raise DocumentError.of(
            Problem(_WHERE, 0, at, "this is a masked secret", "Give the secret itself or a ${VAR}, or leave it out.")
            for at in found
        )


def _refuse_long(data: Any) -> None:
    found: list[Problem] = []

    def note(text: str, at: Path) -> str:
        most = LONGEST_CODE if at and at[-1] == "inline" else LONGEST_STRING
        if len(text) > most:
            found.append(Problem(_WHERE, 0, at, f"longer than {most} characters", "No option needs that much."))
        return text

    _map_strings(data, (), note)
    if found:
        raise DocumentError.of(found)


def merge_patch(target: Any, patch: Any) -> Any:
    """JSON Merge Patch (RFC 7396): null removes a key, mappings are merged, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def document_of(data: Mapping[str, Any], label: str, environment: Mapping[str, str]) -> Document:
    """The document with its variables expanded from `environment`. `DocumentError` names those that are not in it."""
    problems: list[Problem] = []

    def expand_text(text: str, at: Path) -> str:
        found = expand(text, environment, label)
        problems.extend(Problem(label, 0, at, each.what, each.fix) for each in found.problems)
        return found.text

    content = _map_strings(data, (), expand_text)
    if problems:
        raise DocumentError.of(problems)
    return Document(label, content, {(): 0})


class UsedValues:
    """What the variables of a document stand for, to be kept out of what is said about it."""

    def __init__(self, data: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._data, self._environment = data, environment
        found: set[str] = set()

        def note(text: str, _: Path) -> str:
            found.update(self._in(text))
            return text

        _map_strings(data, (), note)
        self._whole = sorted(found - {""}, key=len, reverse=True)
        # A message may quote a part, such as the host of a DSN.
        self._parts = sorted({p for value in found for p in _PART.findall(value)} - found, key=len, reverse=True)

    def hide_in_text(self, text: str) -> str:
        for value in (*self._whole, *self._parts):
            text = text.replace(value, MASK)
        return text

    def hide(self, shown: Any) -> Any:
        """The document as it was resolved, with `***` where it uses a variable, and where a value appears otherwise."""
        return self._hide(shown, self._data)

    def _hide(self, shown: Any, written: Any) -> Any:
        match shown:
            case _ if isinstance(written, str) and self._in(written):
                return MASK
            case Mapping():
                below = written if isinstance(written, Mapping) else {}
                return {key: self._hide(item, below.get(key)) for key, item in shown.items()}
            case list():
                items = written if isinstance(written, list) and len(written) == len(shown) else [None] * len(shown)
                return [self._hide(item, below) for item, below in zip(shown, items, strict=True)]
            case str():
                for value in self._whole:
                    if len(value) >= _TELLING or value == shown:
                        shown = shown.replace(value, MASK)
                return shown
            case _:
                return shown

    def _in(self, text: str) -> list[str]:
        names = (each["body"].partition(":-")[0] for each in REFERENCE.finditer(text))
        return [self._environment[name] for name in names if name in self._environment]


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"this is not JSON: {error}", where=_WHERE, fix="Send it as JSON or as YAML.") from error


def _yaml(text: str) -> list[Any]:
    references: list[str] = []

    def hide(found: re.Match[str]) -> str:
        references.append(found[0])
        return f"\ue000{len(references) - 1}\ue001"

    def restore(value: str, _: Path) -> str:
        return _PLACE.sub(lambda m: references[int(m[1])] if int(m[1]) < len(references) else m[0], value)

    lines = [line if line.lstrip().startswith("#") else REFERENCE.sub(hide, line) for line in text.split("\n")]
    return [_map_strings(each.data, (), restore) for each in parse("\n".join(lines), _WHERE, {})]


def _map_strings(value: Any, at: Path, change: Callable[[str, Path], str]) -> Any:
    match value:
        case str():
            return change(value, at)
        case Mapping():
            return {str(key): _map_strings(item, (*at, str(key)), change) for key, item in value.items()}
        case list():
            return [_map_strings(item, (*at, index), change) for index, item in enumerate(value)]
        case _:
            return value
