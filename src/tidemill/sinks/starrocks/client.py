"""Stream Load: one PUT that the frontend redirects to a backend, which reads the body only after `100 Continue`.

Python's HTTP clients skip over `100 Continue` and send the body at once, to a frontend that does not read it; ours
waits for it (`net/http.py`). A connection serves one exchange: the frontend's ends with its redirect.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import orjson

from tidemill.errors import DeliveryError, Refused
from tidemill.net.http import Garbled, HttpConnection, Origin, head
from tidemill.retry import RetryPolicy

_REDIRECTS = 5
_SETTLED = ("VISIBLE", "ABORTED", "UNKNOWN")
_HOPELESS = ("access denied", "unknown table", "unknown database", "unknown reference column", "has no default value",
             "label format", "primary key column", "unknown partition", "not supported", "syntax error")  # fmt: skip
_OF_DATA = ("filtered rows", "quality not good", "parse", "invalid", "too long", "out of range", "null value")


class RowsRefused(Exception):
    """The load failed because of its rows. `report` is the server's list of them: never shown, it quotes values."""

    def __init__(self, filtered: int, report: str) -> None:
        super().__init__("rows were refused")
        self.filtered = filtered
        self.report = report


@dataclass(frozen=True, slots=True)
class LoadResult:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class StreamLoads:
    """Loads into one cluster. `url` is the frontend's; `tls` trusts what it should."""

    url: str
    user: str
    password: str
    where: str
    connect_timeout: float
    timeout: float
    tls: ssl.SSLContext | None = None
    backend: str = ""
    seconds: float = field(default=0.0)

    def load(self, database: str, table: str, label: str, headers: Mapping[str, str], body: bytes) -> bool:
        """True when the rows were loaded now, False when an earlier load of this label has them. Returns only when
        they are visible; `RowsRefused` if some of them cannot be."""
        began = time.perf_counter()
        try:
            return self._load(database, table, label, headers, body)
        finally:
            self.seconds += time.perf_counter() - began

    def state(self, database: str, label: str) -> str:
        """VISIBLE, COMMITTED, PREPARE, ABORTED, UNKNOWN; what the frontend says of a label."""
        path = f"/api/{quote(database, safe='')}/get_load_state?{urlencode({'label': label})}"
        answer = self._follow("GET", urljoin(self.url, path), {}, b"")
        return str(self._document(answer).get("state", "UNKNOWN")).upper()

    def _load(self, database: str, table: str, label: str, headers: Mapping[str, str], body: bytes) -> bool:
        path = f"/api/{quote(database, safe='')}/{quote(table, safe='')}/_stream_load"
        sent = {
            **headers, "label": label, "format": "json", "strip_outer_array": "true", "ignore_json_size": "true",
            "strict_mode": "true", "max_filter_ratio": "0", "timezone": "UTC", "timeout": str(int(self.timeout)),
        }  # fmt: skip
        start = f"http://{self.backend}" if self.backend else self.url
        result = self._document(self._follow("PUT", urljoin(start, path), sent, body))
        status = result.get("Status")
        filtered = int(result.get("NumberFilteredRows") or 0)
        if status == "Success" and not filtered:
            return True
        if status == "Publish Timeout":  # committed, but not yet to be seen
            return self._await(database, label)
        if status == "Label Already Exists":
            self._await(database, label, str(result.get("ExistingJobStatus", "")))
            return False
        raise self._failure(result, filtered)

    def _await(self, database: str, label: str, existing: str = "") -> bool:
        """Until the load of this label is visible. One that was given up makes the label free: try again."""
        looks = RetryPolicy(first=0.05, most=2.0, seconds=self.timeout).begin()
        while True:
            state = self.state(database, label)
            if state == "VISIBLE" or (state == "UNKNOWN" and existing == "FINISHED"):
                return True
            if state in _SETTLED or not looks.pause():
                raise DeliveryError(
                    f'the load "{label}" is {state.lower()}', where=self.where, fix="The batch is loaded again."
                )

    def _failure(self, result: Mapping[str, Any], filtered: int) -> Exception:
        message = str(result.get("Message", "")).lower()
        if result.get("ErrorURL") or filtered or any(word in message for word in _OF_DATA):
            return RowsRefused(filtered, self._report(str(result.get("ErrorURL") or "")))
        # The message may quote a value; the words that were recognised do not.
        hopeless = next((word for word in _HOPELESS if word in message), "")
        if hopeless:
            return Refused(
                f"StarRocks refused the load: {hopeless}", where=self.where,
                fix="Compare the table with docs/sinks/starrocks.md; the user needs INSERT on it.",
            )  # fmt: skip
        return DeliveryError(
            f'StarRocks did not take the load "{result.get("Label", "")}"', where=self.where,
            fix="information_schema.loads has the reason under this label; the load is tried again.",
        )  # fmt: skip

    def _report(self, url: str) -> str:
        if not url:
            return ""
        try:
            return self._follow("GET", url, {}, b"").body.decode(errors="replace")
        except DeliveryError:
            return ""  # the rows are then looked for by halves

    def _document(self, answer: LoadResult) -> dict[str, Any]:
        if answer.status in (401, 403):
            raise Refused(
                "StarRocks does not let us in", where=self.where,
                fix="Check user and password; the user needs INSERT on the table.",
            )  # fmt: skip
        try:
            document = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            raise DeliveryError(
                f"StarRocks answered with status {answer.status} and no result", where=self.where,
                fix="Is the url that of a frontend's HTTP port (8030)?",
            )  # fmt: skip
        return document

    def _follow(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> LoadResult:
        """Credentials go to every node: a backend asks for them again, and a redirect does not carry them."""
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        sent = {"Authorization": f"Basic {token}", **headers}
        for _ in range(_REDIRECTS):
            try:
                answer = self._exchange(method, url, sent, body)
            except (OSError, Garbled, ValueError) as error:
                raise DeliveryError(
                    f"StarRocks at {urlsplit(url).hostname}:{urlsplit(url).port} cannot be reached, or broke off",
                    where=self.where, fix="Are frontend and backends up, and is the backend's address reachable?",
                ) from error  # fmt: skip
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            url = urljoin(url, answer.headers.get("location", ""))
        raise DeliveryError("StarRocks redirects without end", where=self.where, fix="Is a proxy in between?")

    def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> LoadResult:
        origin = Origin.of(url)
        tls = self.tls or (ssl.create_default_context() if origin.secure else None)
        # Names of columns stand in headers, in UTF-8.
        sent = {name: value.encode().decode("latin-1") for name, value in headers.items()}
        lines = head(method, url, {"Connection": "close", **sent})
        wire = HttpConnection(origin, tls, connect_seconds=self.connect_timeout, answer_seconds=self.timeout)
        with closing(wire):
            reply, content = wire.fetch(lines, body, expect=method == "PUT")
        return LoadResult(reply.status, reply.headers, content)
