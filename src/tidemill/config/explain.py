"""Turns pydantic's findings into problems a person can act on: the line, the path, the nearest valid name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tidemill.config.document import Document
from tidemill.config.problem import Path, Problem, suggest
from tidemill.config.secrets import is_secret, sounds_secret

_WANTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "text", "list": "a list",
    "tuple": "a list", "dict": "a mapping", "model": "a mapping", "path": "a path",
}  # fmt: skip
_PLACEHOLDERS = {bool: "true", int: "NUMBER", float: "NUMBER", str: "TEXT", SecretStr: "TEXT", FilePath: "PATH"}
_KINDS = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "empty"}


def explain(error: ValidationError, model: type[BaseModel], document: Document, at: Path) -> list[Problem]:
    """`at` is the path where `model` begins. One problem per path: the branches of a union count once."""
    found: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False):
        path = _path(detail, _data_at(document.data, at))
        what, fix = _explain(detail, path, model)
        found.setdefault(path, document.problem(at + path, what, fix))
    return list(found.values())


def _explain(detail: ErrorDetails, path: Path, model: type[BaseModel]) -> tuple[str, str]:
    field = _field_at(model, path)
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return f'"{path[-1]}" is missing', _advise("Add", field, path)
        case "extra_forbidden":
            around = _model_at(model, path[:-1])
            return f'unknown key "{path[-1]}"', suggest(str(path[-1]), around.model_fields if around else ())
        case "literal_error" | "enum":
            valid = re.findall(r"'([^']+)'", str(context.get("expected", "")))
            return f"{_got(detail, path, field)} is not one of its values", suggest(
                str(detail["input"]), valid, noun="Valid"
            )
        case "value_error":
            return str(context.get("error", detail["msg"])), _explain_meaning("Change", field, path)
        case "string_pattern_mismatch":
            allowed = f"Write it so that it matches {context.get('pattern', '')}. {_meaning(field)}".rstrip()
            return f"{_got(detail, path, field)} has characters that are not allowed here", allowed
        case "too_short":
            what = f"should have at least {context['min_length']}, not {context['actual_length'] or 'none'}"
            return what, _advise("Write", field, path)
        case kind if (wanted := _WANTED.get(kind.partition("_")[0])) and kind.endswith(("_type", "_parsing", "_float")):
            return f"should be {wanted}, not {_got(detail, path, field)}", _advise("Write", field, path)
        case _:
            message = re.sub(r"^(Input|String|List|Tuple|Dictionary|Value) should", "should", detail["msg"])
            return f"{message}, not {_got(detail, path, field)}", _advise("Write", field, path)


def _advise(verb: str, field: FieldInfo | None, path: Path) -> str:
    """What to write, as it would stand in the document, and what it is for."""
    if field is None:
        return ""
    instance = ", for instance" if _has_default(field) else ""
    return f"{verb} `{_name(path)}: {_sample(field)}`{instance}. {_meaning(field)}".rstrip()


def _explain_meaning(verb: str, field: FieldInfo | None, path: Path) -> str:
    return f"{verb} `{_name(path)}`. {_meaning(field)}".rstrip() if field else ""


def _meaning(field: FieldInfo | None) -> str:
    return f"It means: {field.description}" if field and field.description else ""


def _name(path: Path) -> str:
    return next((step for step in reversed(path) if isinstance(step, str)), "")


def _has_default(field: FieldInfo) -> bool:
    return isinstance(field.default, str | int | float) and field.default != "" and not is_secret(field)


def _sample(field: FieldInfo) -> str:
    """Its default, or a placeholder of its type."""
    if _has_default(field):
        return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return _placeholder(field.annotation)


def _placeholder(annotation: Any) -> str:
    origin, inner = get_origin(annotation), [each for each in get_args(annotation) if each is not type(None)]
    if origin is Literal:
        return str(inner[0])
    if origin in (list, tuple, set, frozenset):
        return f"[{_placeholder(inner[0])}]" if inner else "[…]"
    if origin is dict or annotation is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "{…}"
    if inner:  # Annotated, a union
        return _placeholder(inner[0])
    return _PLACEHOLDERS.get(annotation, "…")


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
