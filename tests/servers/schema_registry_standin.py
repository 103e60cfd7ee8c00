"""A stand-in for a schema registry: Confluent's REST API as far as a producer uses it, with BACKWARD compatibility.

It keeps schemas in memory, gives the same number for the same schema, and refuses a version that could not read the
events of the one before: Avro by the specification's rules of schema resolution, Protobuf by the types of its fields.
"""

from __future__ import annotations

import base64
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

_PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
             "string": ("bytes",), "bytes": ("string",)}  # fmt: skip
_PROTO_FIELD = re.compile(r"^\s*(?:optional|repeated) (\S+) \w+ = (\d+)")


class StandInRegistry:
    """`fail_with` makes every answer that status. `login` is what `Authorization` must be."""

    def __init__(self, *, login: str = "", tls: tuple[str, str] | None = None) -> None:
        self.subjects: dict[str, list[int]] = {}
        self.schemas: list[tuple[str, str]] = []  # kind and text; the number is the place, from 1
        self.requests = 0
        self.fail_with = 0
        self.login = login
        self._lock = threading.Lock()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*registry._get(urlsplit(self.path).path, self.headers))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(*registry._post(urlsplit(self.path).path, body, self.headers))

            def _answer(self, status: int, document: Any) -> None:
                data = orjson.dumps(document)
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @contextmanager
    def running(self) -> Iterator[StandInRegistry]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def schema(self, number: int) -> str:
        return self.schemas[number - 1][1]

    def _get(self, path: str, headers: Any) -> tuple[int, Any]:
        if refused := self._refused(headers):
            return refused
        return (200, {"compatibilityLevel": "BACKWARD"}) if path == "/config" else (404, {"message": "HTTP 404"})

    def _post(self, path: str, body: bytes, headers: Any) -> tuple[int, Any]:
        if refused := self._refused(headers):
            return refused
        found = re.fullmatch(r"/subjects/([^/]+)/versions", path)
        if not found:
            return 404, {"message": "HTTP 404 Not Found"}
        document = orjson.loads(body)
        kind, text = document.get("schemaType", "AVRO"), document["schema"]
        with self._lock:
            versions = self.subjects.setdefault(unquote(found[1]), [])
            if versions and (problem := _incompatible(kind, text, self.schemas[versions[-1] - 1])):
                return 409, {"error_code": 409, "message": f"Schema being registered is incompatible: {problem}"}
            if (kind, text) not in self.schemas:
                self.schemas.append((kind, text))
            number = self.schemas.index((kind, text)) + 1
            if number not in versions:
                versions.append(number)
            return 200, {"id": number}

    def _refused(self, headers: Any) -> tuple[int, Any] | None:
        with self._lock:
            self.requests += 1
        if self.fail_with:
            return self.fail_with, {"error_code": self.fail_with, "message": "told to fail"}
        if self.login and headers["Authorization"] != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        return None


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _incompatible(kind: str, text: str, old: tuple[str, str]) -> str:
    """Why a reader with the new schema cannot read events of the old one; empty if it can."""
    if kind != old[0]:
        return f"{kind} after {old[0]}"
    if kind == "PROTOBUF":
        before, after = (_proto_fields(part) for part in (old[1], text))
        changed = [number for number, kind in after.items() if before.get(number, kind) != kind]
        return f"fields {changed} changed their type" if changed else ""
    new, written = orjson.loads(text), orjson.loads(old[1])
    return _resolve(new, written, _named(new), _named(written))


def _proto_fields(text: str) -> dict[tuple[str, int], str]:
    """(message, number) -> type; those that read each other's bytes count as one."""
    fields, message = {}, ""
    for line in text.splitlines():
        if found := re.match(r"message (\w+)", line):
            message = found[1]
        elif found := _PROTO_FIELD.match(line):
            fields[message, int(found[2])] = found[1].replace("int32", "int64")
    return fields


def _resolve(reader: Any, writer: Any, names: dict[str, Any], old_names: dict[str, Any]) -> str:
    reader, writer = _looked_up(reader, names), _looked_up(writer, old_names)
    if isinstance(writer, list):
        problems = [_resolve(reader, branch, names, old_names) for branch in writer]
        return next((p for p in problems if p), "")
    if isinstance(reader, list):
        problems = [_resolve(branch, writer, names, old_names) for branch in reader]
        return "" if not all(problems) else problems[-1]
    kind, old = (part["type"] if isinstance(part, dict) else part for part in (reader, writer))
    if kind != old:
        return "" if kind in _PROMOTED.get(old, ()) else f"{old} cannot be read as {kind}"
    if kind == "array":
        return _resolve(reader["items"], writer["items"], names, old_names)
    if kind != "record":
        logical = [
            [p.get(n) for n in ("logicalType", "scale")] if isinstance(p, dict) else [] for p in (reader, writer)
        ]
        return "" if logical[0] == logical[1] else "another logical type"
    if reader["name"] != writer["name"]:
        return f"{writer['name']} is not {reader['name']}"
    known = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        if field["name"] not in known:
            if "default" not in field:
                return f"{field['name']} has no default"
        elif problem := _resolve(field["type"], known[field["name"]]["type"], names, old_names):
            return f"{field['name']}: {problem}"
    return ""


def _looked_up(schema: Any, names: dict[str, Any]) -> Any:
    return names.get(schema, schema) if isinstance(schema, str) else schema


def _named(schema: Any) -> dict[str, Any]:
    match schema:
        case list():
            return {name: found for part in schema for name, found in _named(part).items()}
        case {"type": "record"}:
            return {schema["name"]: schema} | _named([field["type"] for field in schema["fields"]])
        case {"type": "array"}:
            return _named(schema["items"])
    return {}
