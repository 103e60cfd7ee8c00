"""Turns pydantic's findings into problems a person can act on: the line, the path, the nearest valid name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tidemill.config.document import Document
from tidemill.config.problem import Path, Problem, suggest
from tidemill.config.secrets import is_secret, sounds_secret

_WANTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "text", "list": "a list",
    "tuple": "a list", "dict": "a mapping", "model": "a mapping", "path": "a path",
}  # fmt: skip
_KINDS = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "empty"}


def explain(error: ValidationError, model: type[BaseModel], document: Document, at: Path) -> list[Problem]:
    """`at` is the path where `model` begins. One problem per path: the branches of a union count once."""
    found: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False):
        path = _path(detail, _data_at(document.data, at))
        what, fix = _words(detail, path, model)
        found.setdefault(path, document.problem(at + path, what, fix))
    return list(found.values())


def _words(detail: ErrorDetails, path: Path, model: type[BaseModel]) -> tuple[str, str]:
    field = _field_at(model, path)
    about = (field.description or "") if field else ""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return f'"{path[-1]}" is missing', about
        case "extra_forbidden":
            around = _model_at(model, path[:-1])
            return f'unknown key "{path[-1]}"', suggest(str(path[-1]), around.model_fields if around else ())
        case "literal_error" | "enum":
            valid = re.findall(r"'([^']+)'", str(context.get("expected", "")))
            return f"{_got(detail, path, field)} is not one of its values", suggest(
                str(detail["input"]), valid, noun="Valid"
            )
        case "value_error":
            return str(context.get("error", detail["msg"])), about
        case "string_pattern_mismatch":
            return f"{_got(detail, path, field)} has characters that are not allowed here", about or str(
                context.get("pattern", "")
            )
        case "too_short":
            return f"should have at least {context['min_length']}, not {context['actual_length'] or 'none'}", about
        case kind if (wanted := _WANTED.get(kind.partition("_")[0])) and kind.endswith(("_type", "_parsing", "_float")):
            return f"should be {wanted}, not {_got(detail, path, field)}", about
        case _:
            message = re.sub(r"^(Input|String|List|Tuple|Dictionary|Value) should", "should", detail["msg"])
            return f"{message}, not {_got(detail, path, field)}", about


def _got(detail: ErrorDetails, path: Path, field: FieldInfo | None) -> str:
    """The offending value, unless it might be a secret or is large: then its kind."""
    value = detail["input"]
    named = next((step for step in reversed(path) if isinstance(step, str)), "")
    if (field and is_secret(field)) or sounds_secret(named) or not isinstance(value, str | int | float | bool):
        return _kind(value)
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else _kind(value)


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _path(detail: ErrorDetails, data: Any) -> Path:
    """pydantic's location without the names of union branches and validators, which are not in the document."""
    path: list[str | int] = []
    for number, step in enumerate(detail["loc"], start=1):
        last = number == len(detail["loc"])
        inner = _data_at(data, (step,))
        if inner is not None or (isinstance(data, dict) and step in data):
            path.append(step)
            data = inner
        elif last and detail["type"] == "missing":
            path.append(step)
    return tuple(path)


def _data_at(data: Any, path: Path) -> Any:
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _field_at(model: type[BaseModel], path: Path) -> FieldInfo | None:
    while path and isinstance(path[-1], int):
        path = path[:-1]
    around = _model_at(model, path[:-1]) if path else None
    return around.model_fields.get(str(path[-1])) if around else None


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int) or current is None:
            continue
        field = current.model_fields.get(step)
        current = next(_models(field.annotation), None) if field else None
    return current


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
