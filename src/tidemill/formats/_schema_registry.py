"""A client of schema registries that speak Confluent's REST API: registers a schema, learns its number.

Used by formats in Spark workers. A schema's number never changes, so each is asked for once per worker.
"""

from __future__ import annotations

import enum
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

import orjson

from tidemill.errors import DeliveryError, EnvironmentProblem, Refused

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class Naming(enum.StrEnum):
    """Under which subject a schema is registered."""

    TOPIC = "topic"  # <topic>-value
    RECORD = "record"  # <record>
    TOPIC_RECORD = "topic_record"  # <topic>-<record>


class Part(enum.StrEnum):
    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Schema:
    """`name` is the full name of the record; `kind` is `AVRO` or `PROTOBUF`."""

    name: str
    kind: str
    text: str


@dataclass(slots=True)
class SchemaRegistry:
    """`headers` and `pool_options` carry credentials and TLS. Connects on first use."""

    url: str
    naming: Naming = Naming.TOPIC
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    pool_options: dict[str, Any] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 10.0
    _numbers: dict[tuple[str, Schema], int] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _pool: Any = field(default=None, repr=False)

    def subject(self, schema: Schema, part: Part, topic: str) -> str:
        """Without a topic (a sink that has none) the record's name takes its place."""
        match self.naming:
            case Naming.TOPIC:
                return f"{topic or schema.name}-{part}"
            case Naming.RECORD:
                return schema.name
            case Naming.TOPIC_RECORD:
                return f"{topic}-{schema.name}" if topic else schema.name

    def frame(self, schema: Schema, part: Part, topic: str) -> bytes:
        """What stands before a document: a zero and the schema's number."""
        return struct.pack(">bI", 0, self.number(schema, self.subject(schema, part, topic)))

    def number(self, schema: Schema, subject: str) -> int:
        """Registers the schema unless this worker knows its number. `Refused` if the registry will not have it."""
        with self._lock:
            known = self._numbers.get((subject, schema))
            if known is None:
                known = self._numbers[subject, schema] = self._register(schema, subject)
            return known

    def _register(self, schema: Schema, subject: str) -> int:
        from urllib.parse import quote

        body: dict[str, str] = {"schema": schema.text}
        if schema.kind != "AVRO":  # registries older than 5.5 know nothing else and refuse the field
            body["schemaType"] = schema.kind
        where = f'schema registry {self.url}, subject "{subject}"'
        status, answer = self._post(f"/subjects/{quote(subject, safe='')}/versions", orjson.dumps(body), where)
        reason = _reason(answer)
        if status == 200:
            try:
                return int(orjson.loads(answer)["id"])
            except (ValueError, KeyError, TypeError) as error:
                raise DeliveryError(
                    "the schema registry's answer has no schema number", where=where,
                    fix="Does the url lead to a registry that speaks Confluent's REST API?",
                ) from error  # fmt: skip
        match status:
            case 409:
                raise Refused(
                    f"the schema registry finds the new version of the schema incompatible: {reason}", where=where,
                    fix="Set the subject's compatibility to BACKWARD or NONE, or send the table to another topic.",
                )  # fmt: skip
            case 401 | 403:
                raise Refused(
                    f"the schema registry does not let us in: {reason}", where=where,
                    fix="Check the username and password, or the token, and their right to write the subject.",
                )  # fmt: skip
            case 422 | 404 | 405:
                raise Refused(
                    f"the schema registry refused ({status}): {reason}", where=where,
                    fix="Does the url lead to the registry's root, and does it know this format?",
                )  # fmt: skip
            case _:
                raise DeliveryError(
                    f"the schema registry failed ({status}): {reason}", where=where,
                    fix="Look at the registry; the batch is tried again.",
                )  # fmt: skip

    def _post(self, path: str, body: bytes, where: str) -> tuple[int, bytes]:
        try:
            import urllib3
        except ImportError as error:
            raise EnvironmentProblem("a schema registry needs urllib3", fix="pip install 'tidemill[http]'") from error
        if self._pool is None:
            self._pool = urllib3.PoolManager(retries=False, timeout=self.timeout_seconds, **self.pool_options)
        headers = {"Content-Type": _MEDIA_TYPE, "Accept": _MEDIA_TYPE, **self.headers}
        try:
            answer = self._pool.request("POST", self.url.rstrip("/") + path, body=body, headers=headers, redirect=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise DeliveryError(
                f"the schema registry cannot be reached: {type(error).__name__}", where=where,
                fix="Is it up, and are url and tls of schema_registry right? The batch is tried again.",
            ) from error  # fmt: skip
        return answer.status, answer.data


def _reason(answer: bytes) -> str:
    """The registry's words, without what it quotes: its messages may be long, and hold schemas, never rows."""
    try:
        message = str(orjson.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"
    return message.splitlines()[0][:300] if message else "no reason given"
