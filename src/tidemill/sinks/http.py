"""HTTP: webhooks with one event or a batch of them per request, signed, with an idempotency key.

Requests run side by side, as many as `concurrency`, but a key's events follow one another: the next is not sent before
the former was taken, however often that one had to be tried. A replay sends the same bodies with the same keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from tidemill.component import Check, Component, SinkConfig
from tidemill.errors import Poisoned, Refused
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.sinks._encoding import EVERY_FORMAT, EncodedSinkConfig, encoder
from tidemill.sinks._http_pieces import Packer, Piece
from tidemill.sinks._http_requests import Courier, Stopped, Unacceptable
from tidemill.sinks._inorder import groups
from tidemill.sinks._routing import parsed
from tidemill.sinks._tls import TlsConfig

_ABOUT_CONTENT = {400, 413, 422}  # answers to a batch that may be the fault of some of its events only


class HttpConfig(EncodedSinkConfig):
    url: str = Field(
        description="Where events go, or a template: https://host/hooks/${source.table}. Rows may choose the path "
        "and the query, not the host.",
        json_schema_extra={"secret": True},
    )
    method: Literal["POST", "PUT", "PATCH"] = Field(default="POST", description="Method of the requests.")
    mode: Literal["event", "batch"] = Field(default="event", description="One event per request, or many.")
    max_events: int = Field(default=500, ge=1, description="Events in a request of mode batch.")
    max_bytes: int = Field(
        default=1_048_576, ge=1024, description="Size of a body; a batch is cut to it, a larger event is refused."
    )
    batch_shape: Literal["lines", "array"] = Field(
        default="lines", description="Body of mode batch in JSON: a document per line, or one array."
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="Headers to send; values may be templates: {x-table: ${source.table}}."
    )
    secret_headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Headers that are never shown: {Authorization: Bearer ...}."
    )
    idempotency_header: str = Field(
        default="Idempotency-Key", description="Header that names the events of a request; empty for none."
    )
    signing_secret: SecretStr | None = Field(
        default=None, min_length=1, description="Key of the HMAC-SHA256 signature; none without it."
    )
    signature_header: str = Field(default="X-Tidemill-Signature", description="Header of the signature.")
    concurrency: int = Field(default=8, ge=1, le=256, description="Requests at a time, per lane.")
    follow_redirects: bool = Field(
        default=False, description="Whether to send again where a 3xx points, with secrets only to the same host."
    )
    connect_timeout_seconds: float = Field(default=10.0, gt=0, description="How long connecting may take.")
    timeout_seconds: float = Field(default=30.0, gt=0, description="How long an answer may take.")
    deadline_seconds: float = Field(
        default=60.0, ge=0, description="How long one request is tried again before the batch fails."
    )
    tls: TlsConfig = Field(default=TlsConfig(), description="Certificates, for https.")

    @field_validator("url")
    @classmethod
    def _leads_somewhere(cls, url: str) -> str:
        split = urlsplit(parsed(url))
        if split.scheme not in ("http", "https") or not split.hostname:
            raise ValueError("the url is http://host/path or https://host/path")
        if "$" in split.netloc:
            raise ValueError("the url's host must be fixed: rows do not choose where they are sent")
        return url

    @field_validator("headers")
    @classmethod
    def _headers_parse(cls, headers: dict[str, str]) -> dict[str, str]:
        return {name: parsed(text) for name, text in headers.items()}

    @model_validator(mode="after")
    def _shapes(self) -> HttpConfig:
        if self.mode == "batch" and self.attributes_beside:
            raise ValueError("CloudEvents in binary mode are sent one by one. Use mode: event, or JSON structured.")
        if self.batch_shape == "array" and self.format != "json":
            raise ValueError("batch_shape: array is for JSON. Remove it.")
        return self

    @property
    def where(self) -> str:
        split = urlsplit(self.url)
        return f'sink "{self.id}", {split.scheme}://{split.netloc.rpartition("@")[2]}{split.path}'


class HttpSink(Component[HttpConfig]):
    Config: ClassVar[type[SinkConfig]] = HttpConfig
    mechanism: ClassVar[str] = (
        "Each request is tried until it is answered with 2xx; a replay has the same idempotency key, by which a "
        "receiver can tell."
    )
    single_lane: ClassVar[bool] = False
    formats: ClassVar[frozenset[str]] = EVERY_FORMAT
    tier: ClassVar[Tier] = Tier.AT_LEAST_ONCE
    config: HttpConfig

    def __init__(self, config: HttpConfig) -> None:
        super().__init__(config)
        self._format = encoder(config)
        self._stop = threading.Event()
        self._courier: Courier | None = None
        self._threads: ThreadPoolExecutor | None = None

    def write(self, delivery: Delivery) -> Receipt:
        if self._courier is None or self._threads is None:
            self._courier = Courier(self.config, self._stop)
            self._threads = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="http")
        began = time.perf_counter()
        packer = Packer(self.config, self._format, delivery)
        rounds = [_Round(self.config, packer, self._courier, self._stop) for _ in range(self.config.concurrency)]
        try:
            under_way: list[Future[None]] = []
            for group in groups(delivery):
                dealt = packer.deal(group)  # while the group before is under way
                _settle(under_way)
                under_way = [self._threads.submit(r.run, p) for r, p in zip(rounds, dealt, strict=False) if p]
            _settle(under_way)
        except Poisoned as error:
            self.close()
            raise Poisoned(error.reasons, where=self.config.where, fix=error.fix) from error
        except BaseException:
            self.close()  # nothing of this delivery may still be under way when it is tried again
            raise
        poisoned = {offset: reason for r in rounds for offset, reason in r.poisoned.items()}
        if poisoned:
            raise Poisoned(poisoned, where=self.config.where, fix="Look at the receiver's log for its reason.")
        encoding = sum(r.encode_seconds for r in rounds)
        return Receipt(
            self.config.id, delivery.lane, sum(r.events for r in rounds), sum(r.bytes for r in rounds),
            encode_seconds=encoding, write_seconds=max(0.0, time.perf_counter() - began - encoding),
        )  # fmt: skip

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks._http_doctor import examine

        return examine(self.config)

    def close(self) -> None:
        self._stop.set()
        if self._threads is not None:
            self._threads.shutdown()
        if self._courier is not None:
            self._courier.close()
        self._courier = self._threads = None
        self._stop = threading.Event()


def _settle(under_way: list[Future[None]]) -> None:
    """Waits until all pieces of a group were taken: the next group may have the same keys."""
    problems = [problem for future in under_way if (problem := future.exception()) is not None]
    if problems:  # what no retry mends is the one to tell; one that was merely stopped is not
        problems.sort(key=lambda p: (isinstance(p, Stopped), not isinstance(p, Refused)))
        raise problems[0]


class _Round:
    """One courier's way through a delivery."""

    def __init__(self, config: HttpConfig, packer: Packer, courier: Courier, stop: threading.Event) -> None:
        self.events = 0
        self.bytes = 0
        self.encode_seconds = 0.0
        self.poisoned: dict[int, str] = {}
        self._config = config
        self._packer = packer
        self._courier = courier
        self._stop = stop

    def run(self, pieces: list[Piece]) -> None:
        try:
            for piece in pieces:
                if self._stop.is_set():
                    raise Stopped
                self._send(piece)
        except BaseException:
            self._stop.set()
            raise

    def _send(self, piece: Piece) -> None:
        began = time.perf_counter()
        request = self._packer.request(piece)
        self.encode_seconds += time.perf_counter() - began
        if len(request.body) > self._config.max_bytes:
            self._apart(piece, f"larger than max_bytes, {self._config.max_bytes}")
            return
        try:
            self._courier.send(request)
        except Unacceptable as answer:
            reason = f"the receiver answered HTTP {answer.status}"
            if answer.status in _ABOUT_CONTENT:
                self._apart(piece, reason)
            else:
                self.poisoned |= dict.fromkeys(piece.block.offsets().tolist(), reason)
            return
        self.events += piece.block.rows
        self.bytes += len(request.body)

    def _apart(self, piece: Piece, reason: str) -> None:
        """Halves, until the events that are at fault stand alone."""
        if piece.block.rows == 1:
            self.poisoned[int(piece.block.offsets()[0])] = reason
            return
        for half in piece.halves():
            self._send(half)


component = HttpSink
