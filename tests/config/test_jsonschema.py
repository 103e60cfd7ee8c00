from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from tests.config.conftest import PIPELINE
from tidemill import registry
from tidemill.config import json_schema

Schema = dict[str, Any]
_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
    "number": (int, float),
}  # fmt: skip


def errors(value: Any, schema: Any, root: Schema, at: str = "") -> Iterator[str]:
    """Just enough of a JSON Schema validator for what ours uses; an unknown keyword fails the test."""
    if schema is True:
        return
    known = {
        "title", "description", "default", "format", "writeOnly", "secret", "$defs", "$schema", "type", "enum", "const",
        "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "anyOf", "allOf",
        "if", "then", "else", "$ref", "pattern", "minimum", "maximum", "exclusiveMinimum", "maxLength", "minLength",
        "examples", "prefixItems", "propertyNames",
    }  # fmt: skip
    assert set(schema) <= known, set(schema) - known
    if "$ref" in schema:
        yield from errors(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        yield f"{at}: not {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: not in enum"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: not const"
    if "anyOf" in schema and all(list(errors(value, branch, root, at)) for branch in schema["anyOf"]):
        yield f"{at}: no branch"
    for branch in schema.get("allOf", []):
        yield from errors(value, branch, root, at)
    if "if" in schema:
        met = not list(errors(value, schema["if"], root, at))
        yield from errors(value, schema["then"] if met else schema.get("else", True), root, at)
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{at}: pattern"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{at}: minimum"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from errors(item, schema.get("items", True), root, f"{at}[{index}]")
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        yield from (f"{at}.{name}: missing" for name in schema.get("required", []) if name not in value)
        for name, item in value.items():
            if name in inner:
                yield from errors(item, inner[name], root, f"{at}.{name}")
            elif schema.get("additionalProperties") is False:
                yield f"{at}.{name}: unknown"


schema_once = cache(json_schema)


def check(text: str) -> list[str]:
    schema = schema_once()
    return list(errors(yaml.safe_load(text), schema, schema))


def test_a_right_document_passes() -> None:
    assert check(PIPELINE) == []
    assert check(PIPELINE + "  checkpoints: {type: sqlite, config: {keep: 5}}\n  commit_policy: {mode: all}\n") == []
    assert check(PIPELINE + "  processors: [{type: drop, id: d, columns: [a]}]\n") == []
    assert check(PIPELINE + "  processors: [{type: drop, id: d, config: {columns: [a], on_error: skip}}]\n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PIPELINE.replace("id: b", "id: b, topik: x"), ".spec.sinks[0].config.topik: unknown"),
        (PIPELINE.replace("bucket", "barrel"), ".spec.sinks[0].config.litres: missing"),
        (PIPELINE.replace("type: bucket", "type: nothing"), ".spec.sinks[0].type: no branch"),
        (PIPELINE.replace(", config: {id: b}", ""), ".spec.sinks[0].config: missing"),
        (PIPELINE + "  batch: {max_events: 0}\n", ".spec.batch.max_events: no branch"),
        (PIPELINE + "  bach: {}\n", ".spec.bach: unknown"),
        (PIPELINE + "  processors: [{type: drop, columns: [a]}]\n", ".spec.processors[0].id: missing"),
        (PIPELINE + "  processors: [{type: drop, id: d, x: 1, columns: [a]}]\n", ".spec.processors[0].x: unknown"),
        (PIPELINE + "  processors: [{type: drop, id: d, config: {x: 1}}]\n", ".spec.processors[0].config.x: unknown"),
        (PIPELINE + "  checkpoints: {config: {keep: 5}}\n", ".spec.checkpoints.config.keep: unknown"),
    ],
)
def test_config_is_checked_by_its_type(text: str, message: str) -> None:
    assert message in check(text)


def test_a_variable_may_stand_for_a_number_or_a_word() -> None:
    extra = "  batch: {max_events: '${N:-5}', max_inflight: '${M}', respect_source_tx: '${T}'}\n  ack: ${ACK}\n"
    assert check(PIPELINE.replace("type: bucket", "type: '${SINK}'") + extra) == []


def test_every_registered_component_is_in_the_schema_with_described_fields() -> None:
    definitions = json_schema()["$defs"]
    for family in ("sources", "processors", "sinks", "checkpoints"):
        for name in registry.names(family):
            assert f"{family}.{name}" in definitions
    bare = [
        f"{name}.{field}"
        for name, definition in definitions.items()
        for field, schema in definition.get("properties", {}).items()
        if "description" not in schema
    ]
    assert bare == []


def test_models_of_the_same_name_in_two_components_do_not_clash() -> None:
    definitions = json_schema()["$defs"]
    assert "sources.pond.Tls" in definitions
    assert "sinks.barrel.Tls" in definitions
