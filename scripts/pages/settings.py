"""Pages of what can be configured: components, the pipeline document, and variables of the environment."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import orjson
from pydantic import BaseModel

from pages import NOTE, has_page
from tidemill import config, contracts, registry
from tidemill.config import environment, spec

_COMPONENTS = (
    contracts.Config,
    contracts.SourceConfig,
    contracts.SinkConfig,
    contracts.ProcessorConfig,
)  # their own models stand on their page

Parts = dict[str, type[BaseModel]]
"""Models inside of models, by the name of their field, in the order they were met."""


def environment_page() -> str:
    """Every field's variable: of the frame, then of each component."""
    rows = list(_variables(spec.PipelineDocument, ()))
    head = [
        "# Environment variables\n",
        NOTE,
        "Every field of a pipeline document can be set or overridden by a variable: `TIDEMILL__` and the path in",
        "capitals, with `__` between its steps. A place in a list is a number from 0; lists are given with commas or",
        "as JSON, mappings as JSON. A variable wins over the file. `tidemill run --env` runs a pipeline that is given",
        "by variables alone; `tidemill validate` shows where each value came from. Processors and further sinks have",
        "the same variables under their numbers.\n",
        "```sh",
        "export TIDEMILL__METADATA__NAME=orders",
        "export TIDEMILL__SPEC__SOURCE__TYPE=postgres TIDEMILL__SPEC__SOURCE__CONFIG__ID=shop",
        "export TIDEMILL__SPEC__SOURCE__CONFIG__DSN=postgresql://cdc@localhost/shop",
        "export TIDEMILL__SPEC__SOURCE__CONFIG__TABLES=public.orders,public.customers",
        "export TIDEMILL__SPEC__SOURCE__CONFIG__SNAPSHOT__MODE=initial",
        "export TIDEMILL__SPEC__SINKS__0__TYPE=files TIDEMILL__SPEC__SINKS__0__CONFIG__ID=lake",
        "export TIDEMILL__SPEC__SINKS__0__CONFIG__PATH=./events",
        "tidemill validate --env",
        "tidemill run --env",
        "```\n",
        "| variable | |",
        "|---|---|",
        *rows,
    ]
    for family, at in (("sources", ("source",)), ("sinks", ("sinks", 0)), ("processors", ("processors", 0)),
                       ("checkpoints", ("checkpoints",))):  # fmt: skip
        for name in registry.names(family):
            model = registry.load(family, name).Config
            head += [f"\n## {family}: {name}\n", "| variable | |", "|---|---|"]
            head += _variables(model, ("spec", *at, "config"))
    return "\n".join([*head, ""])


def _variables(model: type[BaseModel], path: tuple[str | int, ...], seen: tuple[type, ...] = ()) -> Iterator[str]:
    for name, info in model.model_fields.items():
        kinds = [info.annotation, *get_args(info.annotation)]
        inner = next((each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)), None)
        if inner in _COMPONENTS:
            continue
        if inner is None or inner in seen:
            yield f"| `{environment.variable_of((*path, name))}` | {info.description or ''} |"
        else:
            place = (0,) if get_origin(info.annotation) is tuple else ()
            yield from _variables(inner, (*path, name, *place), (*seen, inner))


def component_page() -> str:
    parts = [
        "# Components\n",
        NOTE,
        "What may stand under `type:` in a [pipeline document](pipeline.md), and the fields of its `config:`.",
    ]
    inner: Parts = {}
    for family in ("sources", "processors", "sinks", "checkpoints"):
        parts.append(f"\n## {family.capitalize()}")
        names = registry.names(family)
        for name in names:
            kind = registry.load(family, name)
            about = (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n\n")[0]
            page = f" More: [{name}](../{family}/{name}.md)." if has_page(family, name) else ""
            if family == "processors" and not page:
                page = f" More: [{name}](../processors.md#{name})."
            twin = next((n for n in names if n != name and _same(kind, registry.load(family, n))), None)
            fields = [f"Settings: those of [{twin}](#{twin})."] if twin else _fields(kind.Config, inner)
            parts += [f"\n### {name}\n", f"{about}{page}\n", *fields]
    parts.append("\n## Parts of these\n")
    return "\n".join([*parts, *_parts(inner, "###")])


def pipeline_page() -> str:
    inner: Parts = {}
    parts = [
        "# The pipeline document\n",
        NOTE,
        "A file holds one pipeline, or several with `---` between them. `${VAR}` and `${VAR:-default}` are filled in",
        "from the environment before the file is read. An unknown key, a missing variable and a wrong type are errors,",
        "with their line and the nearest valid name. [pipeline.schema.json](pipeline.schema.json) says the same to",
        "editors; `tidemill schema` prints it.\n",
        *_fields(spec.PipelineDocument, inner),
    ]
    return "\n".join([*parts, "", *_parts(inner, "##")])


def document_page() -> str:
    return orjson.dumps(config.json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n"


def _fields(model: type[BaseModel], inner: Parts) -> Iterator[str]:
    if not model.model_fields:
        yield "No settings."
        return
    yield "| field | type | default | |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        plain = "" if value is None or isinstance(value, BaseModel) else f"`{_plain(value)}`"
        default = "required" if field.is_required() else plain
        kind = _type(field.annotation)
        if part := _model(field.annotation):
            inner.setdefault(name, part)
            kind = f"[{name}](#{name})" if inner[name] is part else kind
        if part in _COMPONENTS:
            kind = "see [components](components.md)"
        yield f"| `{name}` | {kind} | {default} | {field.description or ''} |"


def _parts(inner: Parts, level: str) -> Iterator[str]:
    """A section for each, and for what they hold in turn."""
    done: set[str] = set()
    while waiting := [name for name in inner if name not in done]:
        name = waiting[0]
        done.add(name)
        if inner[name] not in _COMPONENTS:
            yield from (f"{level} {name}\n", *_fields(inner[name], inner), "")


def _same(kind: Any, other: Any) -> bool:
    """Whether a component has the settings of another one that it extends."""
    return issubclass(kind, other) and kind.Config.model_fields.keys() == other.Config.model_fields.keys()


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    return next(filter(None, map(_model, get_args(annotation))), None)


def _plain(value: Any) -> str:
    return str(value or '""') if isinstance(value, str) else orjson.dumps(value, default=str).decode()


_WORDS = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "SecretStr": "text"}


def _type(annotation: Any) -> str:
    arguments = [a for a in get_args(annotation) if a is not type(None) and a is not Ellipsis]
    match get_origin(annotation):
        case None:
            name: str = annotation.__name__
            return _WORDS.get(name, name.lower())
        case origin if origin is Annotated:
            return _type(arguments[0])
        case origin if origin is Literal:
            return ", ".join(f"`{a}`" for a in arguments)
        case origin if origin in (tuple, list):
            return f"list of {_type(arguments[0])}"
        case origin if origin is dict:
            return "map"
        case _:
            return " or ".join(_type(a) for a in arguments)
