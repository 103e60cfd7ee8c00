"""Fields of a document from environment variables: for who configures nothing else, and to override a file.

The rules, all of them:

    TIDEMILL__SPEC__BATCH__MAX_EVENTS=1000           spec.batch.max_events: names in capitals, `__` between them
    TIDEMILL__SPEC__SINKS__0__CONFIG__PATH=/srv      a number is a place in a list, from 0, without gaps
    TIDEMILL__SPEC__SOURCE__CONFIG__TABLES=a,b       where a list is wanted, commas separate; JSON may be given as well
    TIDEMILL__SPEC__SPARK__CONF={"spark.x": "1"}     JSON where a mapping is wanted; the whole of it is replaced

A variable wins over the file, and one for a part wins over one for the whole. Values are not expanded again. An empty
variable is an empty text. Documents of the API take nothing from the environment this way.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Union, get_args, get_origin

import orjson
from pydantic import BaseModel

from tidemill import registry
from tidemill.config.document import Document, plain_value
from tidemill.config.problem import DocumentError, Path, Problem
from tidemill.config.spec import PipelineDocument

PREFIX = "TIDEMILL__"
SOURCE = "the environment"
_FAMILIES = {"source": "sources", "sinks": "sinks", "processors": "processors", "checkpoints": "checkpoints"}
_LISTS = (list, tuple, set, frozenset)


def override(document: Document, environment: Mapping[str, str]) -> Document:
    """The document with what the environment says of it; `DocumentError` names every variable that says nothing."""
    found = [(path_of(name), name) for name in environment if name.startswith(PREFIX)]
    # The whole before its parts, the type before its settings, places in a list in their order.
    found.sort(key=lambda each: (len(each[0]), [(isinstance(step, str), step) for step in each[0]]))
    if not found:
        return document
    data, problems = copy.deepcopy(document.data), list[Problem]()
    variables = dict(document.variables)
    for path, name in found:
        problem = _place(data, path, _value(environment[name], _annotation(data, path)))
        if problem:
            problems.append(Problem(name, 0, path, problem, _HOW))
        variables[path] = name
    if problems:
        raise DocumentError.of(problems)
    return replace(document, data=data, variables=variables)


def document_of_environment(environment: Mapping[str, str]) -> Document:
    """A pipeline that is given by the environment alone."""
    if not any(name.startswith(PREFIX) for name in environment):
        raise DocumentError.of(
            [Problem(SOURCE, 0, (), f"no variable begins with {PREFIX}", f"Set {PREFIX}METADATA__NAME and others.")]
        )
    return override(Document(SOURCE, {}, {}), environment)


def path_of(name: str) -> Path:
    steps = name.removeprefix(PREFIX).split("__")
    return tuple(int(step) if step.isdigit() else step.lower() for step in steps)


def variable_of(path: Path) -> str:
    return PREFIX + "__".join(str(step).upper() for step in path)


_HOW = "Write names in capitals with __ between them, and a number for a place in a list."


def _place(data: Any, path: Path, value: Any) -> str:
    """Puts the value there; what is wrong, if that is not possible."""
    if "" in path:
        return "a name between two __ is missing"
    for step, following in zip(path, (*path[1:], None), strict=True):
        last = following is None
        empty: Any = [] if isinstance(following, int) else {}
        match data, step:
            case dict(), str():
                if last:
                    data[step] = value
                elif not isinstance(data.get(step), dict | list):
                    data[step] = empty
            case list(), int():
                if step > len(data):
                    return f"the list has {len(data)} entries: {step} would leave a gap"
                if step == len(data):
                    data.append(value if last else empty)
                elif last:
                    data[step] = value
            case _:
                return "a list wants a number here" if isinstance(data, list) else "there is no list here"
        data = data[step]
    return ""


def _value(text: str, annotation: Any) -> Any:
    kinds = set(_kinds(annotation))
    if text[:1] in "[{" and (kinds & {*_LISTS, dict} or any(map(_is_model, kinds)) or not kinds):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass  # text that only looks like it
    if kinds & set(_LISTS):
        return [plain_value(each.strip()) for each in text.split(",") if each.strip()]
    if str in kinds and not kinds & {int, float, bool}:
        return text
    return plain_value(text)


def _annotation(data: Any, path: Path) -> Any:
    """Of the field at the path, as far as the document says which component it belongs to; None if nobody knows."""
    current: Any = PipelineDocument
    for at, step in enumerate(path):
        if isinstance(step, int):
            inner = [get_args(kind) for kind in _whole(current) if get_origin(kind) in _LISTS]
            current = inner[0][0] if inner and inner[0] else None
            continue
        if step == "config" and at >= 2 and path[0] == "spec" and path[1] in _FAMILIES:
            current = _component(data, path[:at], _FAMILIES[str(path[1])])
            continue
        model = next((kind for kind in _kinds(current) if _is_model(kind)), None)
        field = model.model_fields.get(step) if model is not None else None
        current = field.annotation if field is not None else None
    return current


def _component(data: Any, path: Path, family: str) -> Any:
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in registry.names(family):
        return None
    try:
        return registry.load(family, kind).Config
    except ModuleNotFoundError:  # its driver is missing, which is said where the component is resolved
        return None


def _kinds(annotation: Any) -> Iterator[Any]:
    """The classes that a value may have; of a list only that it is one."""
    return (get_origin(kind) or kind for kind in _whole(annotation))


def _whole(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _whole(each)
    elif hasattr(annotation, "__metadata__"):
        yield from _whole(get_args(annotation)[0])
    elif annotation is not None and annotation is not type(None):
        yield annotation


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
