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
import random
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from tidemill.errors import DeliveryError, Refused

if TYPE_CHECKING:
    from tidemill.sinks.http import HttpConfig

_RETRIED = {408, 425, 429}
_LOGIN = {401, 403, 407}
_HOPS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_DISCARDED = 65_536  # of an answer's body is read, so that the connection can be used again


class Stopped(Exception):
    """Another courier of the same delivery met an error, which is the one to tell."""


class Unacceptable(Exception):
    """The receiver answered a 4xx that no retry changes. The caller finds out which events it is about."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """`identity` is the same whenever the same events are sent: the receiver's means to see a repetition."""

    url: str
    identity: str
    headers: Mapping[str, str]
    body: bytes | memoryview


class Courier:
    """Sends requests over pooled connections; any number of threads may use it. `stop` ends waits between tries."""

    def __init__(self, config: HttpConfig, stop: threading.Event) -> None:
        import urllib3

        if not config.tls.verify:  # asked for, and said by doctor; not once more for every request
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        tls = config.tls.context() if urlsplit(config.url).scheme == "https" else None
        self._pool: Any = urllib3.PoolManager(
            num_pools=20, maxsize=config.concurrency, block=True, ssl_context=tls, retries=False,
            timeout=urllib3.Timeout(connect=config.connect_timeout_seconds, read=config.timeout_seconds),
        )  # fmt: skip
        self._config = config
        self._secret = config.signing_secret.get_secret_value().encode() if config.signing_secret else None
        self._private = {name: value.get_secret_value() for name, value in config.secret_headers.items()}
        self._stop = stop

    def send(self, request: Request) -> None:
        headers = dict(request.headers)
        if self._config.idempotency_header:
            headers[self._config.idempotency_header] = request.identity
        if self._secret is not None:
            headers[self._config.signature_header] = signature(self._secret, request.identity, request.body)
        give_up = time.monotonic() + self._config.deadline_seconds
        pause = _FIRST_PAUSE
        while True:
            status, asked, problem = self._try(request.url, headers, request.body)
            if 200 <= status < 300:
                return
            wait = pause * random.uniform(0.5, 1.0) if asked is None else asked
            if time.monotonic() + wait > give_up:
                raise DeliveryError(
                    f"the receiver did not take a request: {problem}", where=self._config.where,
                    fix="Is it up and well? The batch is tried again.",
                )  # fmt: skip
            if self._stop.wait(wait):
                raise Stopped
            pause = min(pause * 2, _LONGEST_PAUSE)

    def close(self) -> None:
        self._pool.clear()

    def _try(self, url: str, headers: dict[str, str], body: bytes | memoryview) -> tuple[int, float | None, str]:
        """The status (0: no answer), the seconds the receiver asks us to wait, and the problem in words."""
        home, method = _origin(url), self._config.method
        for _ in range(_HOPS):
            private = self._private if _origin(url) == home else {}  # credentials go nowhere else
            try:
                response = self._pool.request(
                    method, url, body=body, headers={**headers, **private}, preload_content=False, redirect=False
                )
                response.read(_DISCARDED)
                response.release_conn()
            except Exception as error:  # noqa: BLE001  judged, and raised again unless it is the network's
                return 0, None, self._no_answer(error)
            status = int(response.status)
            if not 300 <= status < 400:
                return status, *self._judge(status, response.headers)
            target = response.headers.get("Location")
            if not self._config.follow_redirects or target is None:
                raise Refused(
                    f"the receiver answered HTTP {status}, a redirect", where=self._config.where,
                    fix="Set url to where it leads, or follow_redirects: true.",
                )  # fmt: skip
            url = urljoin(url, target)
        raise Refused(f"more than {_HOPS} redirects", where=self._config.where, fix="Set url to the receiver itself.")

    def _judge(self, status: int, headers: Mapping[str, str]) -> tuple[float | None, str]:
        if status in _LOGIN:
            raise Refused(
                f"the receiver refused the login: HTTP {status}", where=self._config.where,
                fix="Check secret_headers, signing_secret and the client certificate.",
            )  # fmt: skip
        if 400 <= status < 500 and status not in _RETRIED:
            raise Unacceptable(status)
        return retry_after(headers.get("Retry-After")), f"HTTP {status}"

    def _no_answer(self, error: Exception) -> str:
        from urllib3.exceptions import HTTPError, LocationParseError, SSLError

        if isinstance(error, LocationParseError):
            raise Refused("the url is none", where=self._config.where, fix="Check url.") from error
        if isinstance(error, SSLError) and "CERTIFICATE" in str(error).upper():
            raise Refused(
                "the receiver's certificate is not trusted, or it does not trust ours", where=self._config.where,
                fix="Check tls.ca_file, tls.certificate_file and the name in url.",
            ) from error  # fmt: skip
        if not isinstance(error, HTTPError | OSError | ssl.SSLError):
            raise error
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
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0.0, (moment - datetime.datetime.now(datetime.UTC)).total_seconds())


def _origin(url: str) -> tuple[str, str]:
    split = urlsplit(url)
    return split.scheme, split.netloc
