"""One HTTP request, tried until it is answered for good: which answers are worth another try, and when.

2xx                       taken
408, 425, 429, 5xx        tried again, after Retry-After if it says so, else with growing pauses, until the deadline
no answer                 likewise
401, 403, 407             the login is wrong, whatever the event: `Refused`
3xx                       `Refused`, unless redirects are allowed
other 4xx                 this body will never be taken: `Unacceptable`
"""

from __future__ import annotations

import datetime
import email.utils
import hashlib
import hmac
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin

from tidemill.errors import DeliveryError, Refused
from tidemill.net.http import Garbled, HttpConnection, Origin, head
from tidemill.retry import RetryPolicy

if TYPE_CHECKING:
    from tidemill.sinks.http import HttpConfig

_RETRIED = {408, 425, 429}
_LOGIN = {401, 403, 407}
_HOPS = 5
_RETRY = RetryPolicy(first=0.1, most=10.0, jitter=0.5)
_RECEIVERS = 20  # that connections are kept to; redirects may lead to any number
IN_URL = "/:?#[]@!$&'()*+,;=%~-._"  # what may stand in a URL as it is


class Stopped(Exception):
    """Another courier of the same delivery met an error, which is the one to tell."""


class Unacceptable(Exception):
    """The receiver answered a 4xx that no retry changes. The caller finds out which events it is about."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


@dataclass(frozen=True, slots=True, eq=False)
class HttpAddress:
    """Where requests go, and the headers that they share. One object serves all of them: its head is made once."""

    url: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """`identity` is the same whenever the same events are sent: the receiver's means to see a repetition."""

    address: HttpAddress
    identity: str
    body: bytes | memoryview


class Courier:
    """Sends one request after the other over a connection of its own. `stop` ends waits between tries."""

    def __init__(self, config: HttpConfig, tls: ssl.SSLContext | None, stop: threading.Event) -> None:
        self._config = config
        self._tls = tls
        self._stop = stop
        self._retry = replace(_RETRY, seconds=config.deadline_seconds)
        self._wires: dict[Origin, HttpConnection] = {}
        self._secret = config.signing_secret.get_secret_value().encode() if config.signing_secret else None
        self._private = {name: value.get_secret_value() for name, value in config.secret_headers.items()}
        self._own = {config.idempotency_header.lower(), config.signature_header.lower() if self._secret else ""}
        self._address: HttpAddress | None = None
        self._home: Origin | None = None
        self._first_lines = b""

    def send(self, request: Request) -> None:
        lines = ""
        if self._config.idempotency_header:
            lines = f"{self._config.idempotency_header}: {request.identity}\r\n"
        if self._secret is not None:
            signed = signature(self._secret, request.identity, request.body)
            lines += f"{self._config.signature_header}: {signed}\r\n"
        tries = self._retry.begin(self._stop)
        while True:
            status, asked, problem = self._try(request.address, lines.encode("latin-1"), request.body)
            if 200 <= status < 300:
                return
            if not tries.pause(asked):
                if self._stop.is_set():
                    raise Stopped
                raise DeliveryError(
                    f"the receiver did not take a request: {problem}", where=self._config.where,
                    fix="Is it up and well? The batch is tried again.",
                )  # fmt: skip

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def _try(self, address: HttpAddress, lines: bytes, body: bytes | memoryview) -> tuple[int, float | None, str]:
        """The status (0: no answer), the seconds the receiver asks us to wait, and the problem in words."""
        if self._home is None or address is not self._address:
            self._home = self._origin(address.url)
            self._first_lines = self._head(address.url, address.headers | self._private)
            self._address = address
        url, origin, first = address.url, self._home, self._first_lines
        for _ in range(_HOPS):
            try:
                reply = self._wire(origin).exchange(first + lines, body)
            except (OSError, Garbled) as error:
                return 0, None, self._no_answer(error)
            if not 300 <= reply.status < 400:
                return reply.status, *self._judge(reply.status, reply.headers)
            target = reply.headers.get("location")
            if not self._config.follow_redirects or target is None:
                raise Refused(
                    f"the receiver answered HTTP {reply.status}, a redirect", where=self._config.where,
                    fix="Set url to where it leads, or follow_redirects: true.",
                )  # fmt: skip
            url = quote(urljoin(url, target), safe=IN_URL)
            origin = self._origin(url)
            private = self._private if origin == self._home else {}  # credentials go nowhere else
            first = self._head(url, address.headers | private)
        raise Refused(f"more than {_HOPS} redirects", where=self._config.where, fix="Set url to the receiver itself.")

    def _head(self, url: str, headers: Mapping[str, str]) -> bytes:
        return head(self._config.method, url, {n: v for n, v in headers.items() if n.lower() not in self._own})

    def _wire(self, origin: Origin) -> HttpConnection:
        if (wire := self._wires.get(origin)) is None:
            if len(self._wires) == _RECEIVERS:
                self.close()
            wire = self._wires[origin] = HttpConnection(
                origin, self._tls, connect_seconds=self._config.connect_timeout_seconds,
                answer_seconds=self._config.timeout_seconds,
            )  # fmt: skip
        return wire

    def _origin(self, url: str) -> Origin:
        try:
            return Origin.of(url)
        except ValueError as error:
            raise Refused(
                f"a url leads nowhere: {error}", where=self._config.where, fix="Check url and the redirects."
            ) from error

    def _judge(self, status: int, headers: Mapping[str, str]) -> tuple[float | None, str]:
        if status in _LOGIN:
            raise Refused(
                f"the receiver refused the login: HTTP {status}", where=self._config.where,
                fix="Check secret_headers, signing_secret and the client certificate.",
            )  # fmt: skip
        if 400 <= status < 500 and status not in _RETRIED:
            raise Unacceptable(status)
        return retry_after(headers.get("retry-after")), f"HTTP {status}"

    def _no_answer(self, error: OSError | Garbled) -> str:
        if isinstance(error, ssl.SSLError) and "CERTIFICATE" in str(error).upper():
            raise Refused(
                "the receiver's certificate is not trusted, or it does not trust ours", where=self._config.where,
                fix="Check tls.ca_file, tls.certificate_file and the name in url.",
            ) from error  # fmt: skip
        return type(error).__name__


def signature(secret: bytes, identity: str, body: bytes | memoryview) -> str:
    """`sha256=<hex>`: HMAC-SHA256 over the identity, a dot and the body. docs/sinks/http.md shows how to check it."""
    digest = hmac.new(secret, identity.encode() + b".", hashlib.sha256)
    digest.update(body)
    return f"sha256={digest.hexdigest()}"


def retry_after(text: str | None) -> float | None:
    """Seconds, from a number or an HTTP date (RFC 9110, 10.2.3); None if there is neither."""
    if not text:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        timestamp = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=datetime.UTC)
    return max(0.0, (timestamp - datetime.datetime.now(datetime.UTC)).total_seconds())
