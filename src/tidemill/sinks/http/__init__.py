"""HTTP: webhooks with one event or a batch of them per request, signed, with an idempotency key.

Requests run side by side, as many as `concurrency`, but a key's events follow one another: the next is not sent before
the former was taken, however often that one had to be tried. A replay sends the same bodies with the same keys.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from tidemill.contracts import BaseSink, Capabilities, Check, SinkConfig
from tidemill.errors import Poisoned, Refused
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.net.tls import TlsConfig
from tidemill.sinks._shared.encoded import EVERY_FORMAT, EncodedSinkConfig, encoder
from tidemill.sinks._shared.in_order import groups
from tidemill.sinks._shared.routing import check_template
from tidemill.sinks.http.client import Courier, Stopped, Unacceptable
from tidemill.sinks.http.pieces import Packer, RequestPiece

_ABOUT_CONTENT = {400, 413, 422}  # answers to a batch that may be the fault of some of its events only
_GROUPS = 2  # encoded at a time: one is under way, the other waits or is being made
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header (RFC 9110, 5.6.2)
_COUNTED = ("content-length", "transfer-encoding")


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
        split = urlsplit(check_template(url))
        if split.scheme not in ("http", "https") or not split.hostname:
            raise ValueError("the url is http://host/path or https://host/path")
        if "$" in split.netloc:
            raise ValueError("the url's host must be fixed: rows do not choose where they are sent")
        return url

    @field_validator("headers")
    @classmethod
    def _headers_parse(cls, headers: dict[str, str]) -> dict[str, str]:
        return {name: check_template(text) for name, text in headers.items()}

    @field_validator("headers", "secret_headers")
    @classmethod
    def _names_of_headers(cls, headers: dict[str, Any]) -> dict[str, Any]:
        for name in headers:
            if not _NAME.fullmatch(name):
                raise ValueError(f'no header can be named "{name}"')
            if name.lower() in _COUNTED:
                raise ValueError(f"{name} follows from the body. Remove it.")
        return headers

    @field_validator("secret_headers")
    @classmethod
    def _values_of_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            text = value.get_secret_value()
            if any(not (" " <= c <= "\xff" or c == "\t") or c == "\x7f" for c in text):
                raise ValueError(f"the value of {name} has characters that no header can hold")
        return headers

    @field_validator("idempotency_header", "signature_header")
    @classmethod
    def _a_name(cls, name: str) -> str:
        if name and not _NAME.fullmatch(name):
            raise ValueError(f'no header can be named "{name}"')
        return name

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


class HttpSink(BaseSink[HttpConfig]):
    Config: ClassVar[type[SinkConfig]] = HttpConfig
    mechanism: ClassVar[str] = (
        "Each request is tried until it is answered with 2xx; a replay has the same idempotency key, by which a "
        "receiver can tell."
    )
    capabilities = Capabilities(formats=EVERY_FORMAT)
    tier: ClassVar[Tier] = Tier.AT_LEAST_ONCE
    config: HttpConfig

    def __init__(self, config: HttpConfig) -> None:
        super().__init__(config)
        self._format = encoder(config)
        self._stop = threading.Event()
        self._couriers: list[Courier] = []
        self._threads: list[ThreadPoolExecutor] = []  # one for each courier: what it is given waits in line

    def write(self, delivery: Delivery) -> Receipt:
        if not self._couriers:
            self._hire()
        began, encoding = time.perf_counter(), 0.0
        packer = Packer(self.config, self._format, delivery)
        rounds = [_Round(self.config, packer, courier, self._stop) for courier in self._couriers]
        try:
            under_way: deque[list[Future[None]]] = deque()
            couriers = 0
            for group in groups(delivery):
                _settle(under_way, leave=_GROUPS - 1)
                start = time.perf_counter()
                dealt = packer.deal(group)  # while the group before is under way
                encoding += time.perf_counter() - start
                if len(dealt) != couriers:  # keys change couriers: each finds its former events taken
                    _settle(under_way)
                    couriers = len(dealt)
                work = zip(self._threads, rounds, dealt, strict=False)
                under_way.append([thread.submit(mine.run, pieces) for thread, mine, pieces in work if pieces])
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
        encoding += sum(r.encode_seconds for r in rounds)
        return Receipt(
            self.config.id, delivery.lane, sum(r.events for r in rounds), sum(r.bytes for r in rounds),
            encode_seconds=encoding, write_seconds=max(0.0, time.perf_counter() - began - encoding),
        )  # fmt: skip

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.http.checks import run_checks

        return run_checks(self.config)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.shutdown()
        for courier in self._couriers:
            courier.close()
        self._couriers, self._threads = [], []
        self._stop = threading.Event()

    def _hire(self) -> None:
        secure = self.config.follow_redirects or urlsplit(self.config.url).scheme == "https"
        tls = self.config.tls.context() if secure else None
        count = self.config.concurrency
        self._couriers = [Courier(self.config, tls, self._stop) for _ in range(count)]
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"http_{number}") for number in range(count)]


def _settle(under_way: deque[list[Future[None]]], leave: int = 0) -> None:
    """Waits until the oldest groups were taken; after a problem for all of them, for the one to tell may be later."""
    while len(under_way) > leave:
        problems = [problem for future in under_way.popleft() if (problem := future.exception()) is not None]
        if problems:  # what no retry mends is the one to tell; one that was merely stopped is not
            later = (future.exception() for group in under_way for future in group)
            problems += [problem for problem in later if problem is not None]
            raise min(problems, key=lambda p: (isinstance(p, Stopped), not isinstance(p, Refused)))


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

    def run(self, pieces: list[RequestPiece]) -> None:
        try:
            for piece in pieces:
                if self._stop.is_set():
                    raise Stopped
                self._send(piece)
        except BaseException:
            self._stop.set()
            raise

    def _send(self, piece: RequestPiece) -> None:
        began = time.perf_counter()
        request = self._packer.request(piece)
        if piece.body is None:
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
                self.poisoned |= dict.fromkeys(piece.offsets().tolist(), reason)
            return
        self.events += piece.rows
        self.bytes += len(request.body)

    def _apart(self, piece: RequestPiece, reason: str) -> None:
        """Halves, until the events that are at fault stand alone."""
        if piece.rows == 1:
            self.poisoned[int(piece.offsets()[0])] = reason
            return
        for half in piece.halves():
            self._send(half)


component = HttpSink
