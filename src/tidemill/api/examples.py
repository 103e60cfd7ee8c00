"""Examples of every body and every answer, for OpenAPI: made of the examples that fields have, and of what a field of
that name usually holds."""

from __future__ import annotations

from typing import Any

from tidemill.api.problems import MEDIA_TYPE

UNKNOWN = "…"
"""Stands where no example is known; a test finds it."""

_AT = "2026-01-31T12:00:00.000+00:00"
_BY_NAME: dict[str, Any] = {
    "about": "Events to Apache Kafka.", "action": "pause", "actor": "ann (token 1f0c2a9b)", "adopted": 12, "at": _AT,
    "attempts": 1, "batch_seconds": 0.21, "batches": 118, "began": "0/16B3748", "capture_restarts": 0,
    "changed_at": _AT, "changed_by": "ann (token 1f0c2a9b)", "chunks": 12, "code": "unknown-pipeline",
    "columns": ["amount"], "consequence": "1,200 events are delivered again", "count": {"lake": 1},
    "dead_letters": 0, "dead_letters_dropped": 0, "decided_at": _AT, "decided_by": "ann (token 1f0c2a9b)",
    "decision": "approved", "delivered": 1200, "desired": "running", "detail": "maintenance of the lake",
    "different": 0, "dry_run": True, "end": 2400, "ended": "", "epoch": 3, "error": "", "estimate": 120_000,
    "event": {"op": "insert"}, "events": 1200, "events_per_second": 5200.0, "extra": 0, "failed": 0,
    "fault": "missing", "fingerprint": "9f86d081884c7d65",
    "first_at": _AT, "fix": "", "formats": ["json", "avro"], "id": 1, "installed": True, "key": ["17"],
    "labels": {"team": "shop"}, "lag_bytes": 4096, "lag_events": 12, "lag_seconds": 0.4, "left_out": [],
    "level": "INFO", "limit": 20, "log_bytes": 16_384, "lost": 0, "missing": 1, "moving": 0, "name": "orders",
    "note": "", "number": 1, "captured": "0/16B3748",
    "offset": 1200, "op": "insert", "origin": "api", "outcome": "pass", "path": ["spec", "sinks", 0],
    "pipeline": "orders", "position": "0/16B3748", "purged": 1, "python": "3.11.2", "reason": "",
    "queued": _AT, "recoveries": 0, "registered_at": _AT, "replayed": 1200, "resumed": True,
    "rows": 120_000, "saved_at": _AT, "seen_at": _AT, "sequence": 1, "since": _AT, "sink": "lake", "skipped": 0,
    "spark": "4.3.0", "stage": "cdc", "start": 1200, "started": _AT, "state": "running", "statements": [],
    "status": "applied", "subject": "orders", "superseded": "", "table": "public.orders", "tenant": "shop", "text": "",
    "title": 'there is no pipeline "orders"', "untried": 0, "version": 7, "wait_seconds": 30.0,
    "what": 'there is no pipeline "orders"', "where": "pipeline orders", "why": "started by an operator", "wrong": 1,
}  # fmt: skip
# Where a field's name is not enough: the field of that shape.
_BY_FIELD: dict[tuple[str, str], Any] = {
    ("PipelineShape", "version"): "5f1c0a9b7d3e2f41", ("VersionShape", "version"): "1.0.0",
    ("ComponentShape", "json_schema"): {"type": "object"}, ("ValidShape", "notes"): [],
    ("ValidShape", "metadata"): {"name": "orders"},
    ("ValidShape", "spec"): {"source": {"type": "postgres"}, "sinks": [{"type": "files"}]},
    ("TableVersion", "columns"): [{"name": "id", "type": "int8", "key": True}],
    ("SinkShape", "id"): "lake", ("SinkShape", "state"): "ok", ("SinkShape", "lost"): 0,
    ("DoctorShape", "ok"): True, ("CheckShape", "name"): "slot", ("CheckShape", "detail"): "it is there",
    ("CheckShape", "subject"): "pipeline orders", ("ReadyPipeline", "status"): "running",
    ("RunShape", "ended"): _AT, ("RunShape", "error"): None,
    ("SnapshotShape", "began"): _AT, ("SnapshotShape", "where"): "", ("CopiedTable", "name"): "public.orders",
    ("CopiedTable", "state"): "ready", ("StatusShape", "notices"): [], ("StatusShape", "error"): None,
    ("PipelineShape", "error"): None, ("ProblemShape", "problems"): None, ("ProblemShape", "status"): 404,
    ("ProblemShape", "where"): "", ("MoveRequest", "since"): None, ("MoveRequest", "sink"): None,
    ("DeadLetterShape", "reason"): "the value is too long for varchar(10)",
    ("TransitionShape", "reason"): "maintenance",
}  # fmt: skip
_SENSED = {
    "table": "public.orders", "version": 2, "fingerprint": "9f86d081884c7d65", "schema_sequence": 1, "events": 1200,
    "sampled": 1200, "last_position": "0/16B3748",
}  # fmt: skip
_EVENT = 'id: 9f86d081-41\nevent: status\ndata: {"name": "orders", "state": "running"}\n\n'
# Of answers that have no shape of ours.
_BY_PATH: dict[str, Any] = {
    "/healthz": "ok",
    "/pipelines/{name}/log": [{
        "event_id": "shop:0/19B6A28:0", "table": "orders", "op": "insert", "position": "0/19B6A28", "offset": 41,
        "before": None, "after": {"id": 5},
    }],
    "/pipelines/{name}/sensing/schemas": [_SENSED],
    "/pipelines/{name}/sensing/schemas/{table}": {
        **_SENSED, "versions": [{"version": 2, "offset": 1200, "at": _AT}], "columns": {},
    },
    "/pipelines/{name}/sensing/schemas/{table}/json-schema": {
        "type": "object", "properties": {"id": {"type": "integer"}},
    },
    "/pipelines/{name}/sensing/stats": {
        "pipeline": "orders", "offset": 1200, "events": 1200, "sampled": 1200, "tables": [],
    },
    "/pipelines/{name}/drift": [{
        "table": "public.orders", "kind": "undeclared_column", "subject": "note", "what": "the column is not declared",
        "reported": True, "events": 3, "first": None, "last": None, "examples": [],
    }],
    "/pipelines/{name}/drift/values": [{
        "table": "public.orders", "kind": "out_of_range", "subject": "total", "what": "values are beyond the range",
        "reported": True, "events": 1, "first": None, "last": None, "examples": [{
            "offset": 41, "position": "0/19B6A28", "at": "2026-01-31T12:00:04.184Z", "in_log": True, "key": {"id": 5},
            "values": ["2000.00"],
        }],
    }],
    "/pipelines/{name}/log/stream": 'id: 41\nevent: change\ndata: {"table": "orders", "op": "insert"}\n\n',
    "/events": _EVENT, "/status/stream": _EVENT, "/pipelines/{name}/events": _EVENT,
}  # fmt: skip
_YAML = 'metadata: {name: orders}\nspec:\n  source: {type: postgres, config: {id: shop, dsn: "${SHOP_DSN}"}}\n'


def add_examples(schema: dict[str, Any]) -> None:
    """To every body and every answer of the description that has none."""
    shapes = schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            for kind, media in operation.get("requestBody", {}).get("content", {}).items():
                if "example" not in media:
                    media["example"] = _YAML if kind == "application/yaml" else _example(media["schema"], shapes)
            for answer in operation["responses"].values():
                for media in answer.get("content", {}).values():
                    media.setdefault("example", _BY_PATH.get(path) or _example(media.get("schema", {}), shapes))
    problem = _example({"$ref": "#/components/schemas/ProblemShape"}, shapes)
    for status, answer in schema["components"]["responses"].items():
        about = {"status": int(status), "title": answer["description"], "what": answer["description"]}
        answer["content"][MEDIA_TYPE]["example"] = {**problem, **about}


def _example(schema: dict[str, Any], shapes: dict[str, Any], shape: str = "", field: str = "") -> Any:
    """The field's own example first, then what fields of its name hold, then what its type says."""
    if "$ref" in schema:
        named = schema["$ref"].rpartition("/")[2]
        return _example(shapes[named], shapes, named)
    if schema.get("examples"):
        return schema["examples"][0]
    if (shape, field) in _BY_FIELD:
        return _BY_FIELD[shape, field]
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if each.get("type") != "null"]
        return _example(kinds[0], shapes, shape, field)
    if "properties" in schema:
        return {name: _example(each, shapes, shape, name) for name, each in schema["properties"].items()}
    if schema.get("type") == "array" and ("$ref" in schema["items"] or field not in _BY_NAME):
        return [_example(schema["items"], shapes, shape, field)]
    if schema.get("type") == "boolean":
        return schema.get("default", False)
    return _BY_NAME.get(field, UNKNOWN)
