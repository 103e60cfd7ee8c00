"""A client of schema registries that speak Confluent's REST API: registers a schema, learns its number.

Used by formats in Spark workers. A schema's number never changes, so each is asked for once per worker.
"""

from __future__ import annotations

import enum
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import orjson

from tidemill.errors import DeliveryError, Refused
from tidemill.net.http import Garbled, HttpConnection, Origin, head

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_FIX_URL = "Does the url lead to the root of a registry that speaks Confluent's REST API and knows this format?"


class Naming(enum.StrEnum):
    """Under which subject a schema is registered."""

    TOPIC = "topic"  # <topic>-value
    RECORD = "record"  # <record>
    TOPIC_RECORD = "topic_record"  # <topic>-<record>


class SubjectPart(enum.StrEnum):
    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Schema:
    """`name` is the full name of the record; `kind` is `AVRO` or `PROTOBUF`."""

    name: str
    kind: str
    text: str


@dataclass(slots=True)
class SchemaRegistryClient:
    """`headers` carry credentials; `tls` makes what https needs, and is called on first use, where the files are."""

    url: str
    naming: Naming = Naming.TOPIC
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
    timeout_seconds: float = 10.0
    _numbers: dict[tuple[str, Schema], int] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _connection: HttpConnection | None = field(default=None, repr=False)

    def subject(self, schema: Schema, part: SubjectPart, topic: str) -> str:
        """Without a topic (a sink that has none) the record's name takes its place."""
        match self.naming:
            case Naming.TOPIC:
                return f"{topic or schema.name}-{part}"
            case Naming.RECORD:
                return schema.name
            case Naming.TOPIC_RECORD:
                return f"{topic}-{schema.name}" if topic else schema.name

    def frame(self, schema: Schema, part: SubjectPart, topic: str) -> bytes:
        """What stands before a document: a zero and the schema's number."""
        return struct.pack(">bI", 0, self.number(schema, self.subject(schema, part, topic)))

    def number(self, schema: Schema, subject: str) -> int:
        """Registers the schema unless this worker knows its number. `Refused` if the registry will not have it."""
        with self._lock:
            known = self._numbers.get((subject, schema))
            if known is None:
                known = self._numbers[subject, schema] = self._register(schema, subject)
            return known

    def compatibility(self) -> str:
        """The registry's own level, for subjects without one: BACKWARD, FULL, NONE, ..."""
        where = f"schema registry {self.url}"
        with self._lock:
            answer = self._ask("GET", "/config", b"", where)
        return str(answer.get("compatibilityLevel", "unknown"))

    def _register(self, schema: Schema, subject: str) -> int:
        body: dict[str, str] = {"schema": schema.text}
        if schema.kind != "AVRO":  # registries older than 5.5 know nothing else and refuse the field
            body["schemaType"] = schema.kind
        where = f'schema registry {self.url}, subject "{subject}"'
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", orjson.dumps(body), where)
        if not isinstance(answer.get("id"), int):
            raise DeliveryError("the schema registry's answer has no schema number", where=where, fix=_FIX_URL)
        return int(answer["id"])

    def _ask(self, method: str, path: str, body: bytes, where: str) -> dict[str, Any]:
        """The caller has the lock."""
        headers = {"Content-Type": _MEDIA_TYPE, "Accept": _MEDIA_TYPE, **self.headers}
        try:
            if self._connection is None:
                self._connection = self._connect()
            answer, content = self._connection.fetch(head(method, self.url.rstrip("/") + path, headers), body)
        except (OSError, Garbled, ValueError) as error:
            raise DeliveryError(
                f"the schema registry cannot be reached: {type(error).__name__}", where=where,
                fix="Is it up, and are the url and tls of schema_registry right? It is tried again.",
            ) from error  # fmt: skip
        try:
            document = orjson.loads(content)
        except orjson.JSONDecodeError:
            document = {}
        document = document if isinstance(document, dict) else {}
        if answer.status == 200:
            return document
        raise _failure(answer.status, document, where)

    def _connect(self) -> HttpConnection:
        origin = Origin.of(self.url)
        return HttpConnection(
            origin, self.tls() if origin.secure else None,
            connect_seconds=self.timeout_seconds, answer_seconds=self.timeout_seconds,
        )  # fmt: skip


def _failure(status: int, document: dict[str, Any], where: str) -> DeliveryError:
    """The registry's words are kept to one line: they may quote schemas, never rows."""
    reason = (str(document.get("message") or "").splitlines() or ["no reason given"])[0][:300]
    match status:
        case 409:
            what = f"the schema registry finds the new version of the schema incompatible: {reason}"
            fix = "Set the subject's compatibility to BACKWARD or NONE, or send the table to another topic."
        case 401 | 403:
            what = f"the schema registry does not let us in: {reason}"
            fix = "Check the username and password, or the token, and their right to write the subject."
        case 404 | 405 | 422:
            what, fix = f"the schema registry refused ({status}): {reason}", _FIX_URL
        case _:
            return DeliveryError(
                f"the schema registry failed ({status}): {reason}", where=where,
                fix="Look at the registry; the batch is tried again.",
            )  # fmt: skip
    return Refused(what, where=where, fix=fix)
