"""One JSON Schema for the whole pipeline document, so that editors complete and check the YAML.

Made from the same models that validate. The `config:` of a component depends on its `type:`, which is written as
if/then: editors follow that better than oneOf, whose errors name every branch. Where a model wants a number, a
boolean or one of a few words, a `${VAR}` is allowed as well: it becomes one before the models see it.
"""

from __future__ import annotations

import copy
from typing import Any

from pydantic import BaseModel

from tidemill import registry
from tidemill.config.spec import PipelineDocument

Schema = dict[str, Any]

_VARIABLE: Schema = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}
_FAMILY_OF = {"SourceSpec": "sources", "SinkSpec": "sinks", "Checkpoints": "checkpoints"}


def json_schema() -> Schema:
    """Loads every registered source, sink and checkpoint store; those whose driver is missing are only named."""
    schema = PipelineDocument.model_json_schema()
    definitions: dict[str, Schema] = schema["$defs"]
    for frame in ("Config", "SourceConfig", "SinkConfig", "ProcessorConfig"):
        definitions.pop(frame, None)
    for part, family in _FAMILY_OF.items():
        _branch(definitions, part, family)
    _branch_processors(definitions)
    _allow_variables(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tidemill pipeline",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _branch(definitions: dict[str, Schema], part: str, family: str) -> None:
    """Rewrites one `{type, config}` so that `type` chooses what `config` may hold."""
    schema = definitions[part]
    names = registry.names(family)
    kind: Schema = schema["properties"]["type"]
    kind["enum"] = names
    schema["properties"]["config"] = {"type": "object", "description": schema["properties"]["config"]["description"]}
    needed = [name for name in schema.get("required", []) if name != "config"]
    schema["required"] = needed
    branches: list[Schema] = []
    for name in names:
        try:
            model: type[BaseModel] = registry.load(family, name).Config
        except ModuleNotFoundError:
            continue  # its driver is an extra that is not installed
        branch: Schema = {"properties": {"config": {"$ref": _hoist(definitions, f"{family}.{name}", model)}}}
        if any(info.is_required() for info in model.model_fields.values()):
            branch["required"] = ["config"]
        chosen: Schema = {"properties": {"type": {"const": name}}}
        if "default" not in kind or kind["default"] != name:
            chosen["required"] = ["type"]
        branches.append({"if": chosen, "then": branch})
    schema["allOf"] = branches


def _branch_processors(definitions: dict[str, Schema]) -> None:
    """The same, but settings stand under `config` or beside `type`, and the id in either place."""
    schema, names = definitions["ProcessorSpec"], registry.names("processors")
    kind: Schema = {**schema["properties"]["type"], "enum": names}
    branches: list[Schema] = []
    for name in names:
        try:
            model: type[BaseModel] = registry.load("processors", name).Config
        except ModuleNotFoundError:
            continue  # its driver is an extra that is not installed
        _hoist(definitions, f"processors.{name}", model)
        flat = definitions[f"processors.{name}"]
        inner = {**flat, "required": [each for each in flat.get("required", []) if each != "id"]}
        definitions[f"processors.{name}"] = inner
        beside = {"type": {"const": name}, **copy.deepcopy(flat["properties"])}
        short: Schema = {"properties": beside, "required": flat.get("required", []), "additionalProperties": False}
        own: Schema = {"type": {"const": name}, "id": copy.deepcopy(flat["properties"]["id"])}
        settings: Schema = {"$ref": f"#/$defs/processors.{name}"}
        long: Schema = {
            "properties": {**own, "config": settings}, "required": ["config"], "additionalProperties": False,
        }  # fmt: skip
        chosen: Schema = {"properties": {"type": {"const": name}}, "required": ["type"]}
        branches.append({"if": chosen, "then": {"if": {"required": ["config"]}, "then": long, "else": short}})
    definitions["ProcessorSpec"] = {
        "type": "object", "title": "ProcessorSpec", "description": schema.get("description", ""),
        "properties": {"type": kind}, "required": ["type"], "allOf": branches,
    }  # fmt: skip


def _hoist(definitions: dict[str, Schema], name: str, model: type[BaseModel]) -> str:
    """Puts the model and what it refers to under one prefix, so that two sinks may both have a `TlsConfig`."""
    prefix = f"{name}."
    schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
    for inner, definition in schema.pop("$defs", {}).items():
        definitions[prefix + inner] = definition
    definitions[name] = schema
    return f"#/$defs/{name}"


def _allow_variables(schema: Any) -> None:
    """In place, for the values of `properties` anywhere below."""
    if isinstance(schema, list):
        for item in schema:
            _allow_variables(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                for name, inner in value.items():
                    _allow_variables(inner)
                    value[name] = _or_variable(inner)
            elif key not in ("if", "const", "enum", "default", "examples"):
                _allow_variables(value)


def _or_variable(schema: Schema) -> Schema:
    closed = schema.get("type") in ("integer", "number", "boolean") or "enum" in schema
    if "anyOf" in schema:
        kinds = {branch.get("type") for branch in schema["anyOf"]} | {"enum" for b in schema["anyOf"] if "enum" in b}
        if kinds & {"integer", "number", "boolean", "enum"}:
            schema["anyOf"].append(_VARIABLE)
        return schema
    if not closed:
        return schema
    about: Schema = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    return {**about, "anyOf": [schema, _VARIABLE]}
