"""A server's API from Python, with nothing but the standard library:

    client = ServerClient("http://127.0.0.1:8080", token)
    client.apply(open("orders.yaml").read())
    client.pause("orders")
    for event in client.events("orders"):
        print(event.kind, event.data)

An error of the server is raised as the class that has its code (`tidemill.errors`), with what, where and fix.
"""

from __future__ import annotations

import http.client
import ssl
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import orjson

from tidemill import __version__
from tidemill.config.posted import read_several
from tidemill.errors import (
    ConfigError,
    ServerError,
    TidemillError,
    Unauthenticated,
    UnknownPipeline,
    from_data,
)


@dataclass(frozen=True, slots=True)
class RemotePipeline:
    """As the server shows it: `spec` with its secrets masked, `version` to change only what was read."""

    name: str
    status: str
    desired: str
    origin: str
    version: str
    tenant: str | None
    labels: Mapping[str, str]
    spec: Mapping[str, Any] | None
    error: Mapping[str, str] | None
    changed_by: str
    changed_at: str
    lease: Mapping[str, Any] | None = None
    next_run: str | None = None


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """`kind` is status, batch, error or dropped; of captured events change. `id` is empty where a stream cannot go on
    after this event."""

    kind: str
    data: Mapping[str, Any]
    id: str = ""


def tls_of_environment(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """TIDEMILL_TLS_CA is the CA of the server; TIDEMILL_TLS_CERT and TIDEMILL_TLS_KEY are this client's certificate,
    for a server that asks for one. None where nothing is set: the system's CAs."""
    ca, certificate = environment.get("TIDEMILL_TLS_CA"), environment.get("TIDEMILL_TLS_CERT")
    if not ca and not certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if certificate:
            context.load_cert_chain(certificate, environment.get("TIDEMILL_TLS_KEY") or None)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"the TLS files cannot be used: {error.strerror or type(error).__name__}",
            where="TIDEMILL_TLS_CA, TIDEMILL_TLS_CERT, TIDEMILL_TLS_KEY",
            fix="Give PEM files that this user can read.",
        ) from error
    return context


class ServerClient:
    """A connection per call; safe between threads. `timeout` in seconds is for one answer: a stop takes its time."""

    whose = " that this token is for"

    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = 120.0, tls: ssl.SSLContext | None = None
    ) -> None:
        split = urlsplit(url)
        if split.scheme not in ("http", "https") or not split.hostname:
            raise ConfigError(f'"{url}" is no address of a server', where="--server", fix="http://127.0.0.1:8080")
        self.url = url
        self._secure, self._host, self._port = split.scheme == "https", split.hostname, split.port
        self._base, self._token, self._timeout, self._tls = split.path.rstrip("/"), token, timeout, tls

    # ---------------------------------------------------------------- pipelines

    def pipelines(self, *, state: str | None = None, labels: Sequence[str] = ()) -> Iterator[RemotePipeline]:
        """All of them, page by page."""
        query: list[tuple[str, str]] = [("label", each) for each in labels]
        query += [("state", state)] if state else []
        after = ""
        while True:
            page = self.request("GET", "/pipelines", query=[*query, ("after", after)])
            yield from map(pipeline_of, page)
            if not page:
                return
            after = page[-1]["name"]

    def pipeline(self, name: str) -> RemotePipeline:
        return pipeline_of(self.request("GET", _of(name)))

    def create(self, document: Mapping[str, Any], *, start: bool = True, key: str | None = None) -> RemotePipeline:
        """`key`: the same for a request that is repeated because its answer was lost."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        query = [("start", str(start).lower())]
        return pipeline_of(self.request("POST", "/pipelines", document, query=query, headers=headers))

    def replace(self, document: Mapping[str, Any], *, version: str | None = None) -> RemotePipeline:
        name = document["metadata"]["name"]
        return pipeline_of(self.request("PUT", _of(name), document, headers=_if_match(version)))

    def patch(self, name: str, patch: Mapping[str, Any], *, version: str | None = None) -> RemotePipeline:
        return pipeline_of(self.request("PATCH", _of(name), patch, headers=_if_match(version)))

    def apply(self, text: str) -> list[RemotePipeline]:
        """Creates or replaces every pipeline of a YAML text. Its `${VAR}` are expanded by the server."""
        done = []
        for document in read_several(text):
            name = (document.get("metadata") or {}).get("name")
            try:
                self.pipeline(str(name))
            except UnknownPipeline:
                done.append(self.create(document))
            else:
                done.append(self.replace(document))
        return done

    def delete(self, name: str, *, version: str | None = None) -> None:
        self.request("DELETE", _of(name), headers=_if_match(version))

    # ---------------------------------------------------------------- lifecycle

    def start(self, name: str, *, reason: str = "") -> RemotePipeline:
        return self.change(name, "start", reason=reason)

    def pause(self, name: str, *, reason: str = "") -> RemotePipeline:
        return self.change(name, "pause", reason=reason)

    def resume(self, name: str, *, reason: str = "") -> RemotePipeline:
        return self.change(name, "resume", reason=reason)

    def stop(self, name: str, *, reason: str = "") -> RemotePipeline:
        return self.change(name, "stop", reason=reason)

    def restart(self, name: str, *, reason: str = "") -> RemotePipeline:
        return self.change(name, "restart", reason=reason)

    def drain(self, name: str, *, reason: str = "") -> RemotePipeline:
        return self.change(name, "drain", reason=reason)

    def recover(self, name: str, mode: str, *, reason: str = "") -> dict[str, Any]:
        """After a lost position; `mode` is snapshot or accept_gap. The pipeline must not run."""
        done: dict[str, Any] = self.request(
            "POST", f"{_of(name)}/recover", {"mode": mode}, query=[("reason", reason)],
            headers={"Idempotency-Key": uuid.uuid4().hex},
        )  # fmt: skip
        return done

    def change(self, name: str, action: str, *, reason: str = "") -> RemotePipeline:
        """`action` is one of the verbs above."""
        return pipeline_of(self.request("POST", f"{_of(name)}/{action}", query=[("reason", reason)]))

    # ---------------------------------------------------------------- how they are

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.request("GET", f"{_of(name)}/status")
        return found

    def transitions(self, name: str, limit: int = 20) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.request("GET", f"{_of(name)}/transitions", query=[("limit", str(limit))])
        return found

    def runs(self, name: str, limit: int = 20) -> list[dict[str, Any]]:
        """Of a pipeline with a schedule, newest first."""
        found: list[dict[str, Any]] = self.request("GET", f"{_of(name)}/runs", query=[("limit", str(limit))])
        return found

    def run_now(self, name: str, *, reason: str = "", key: str | None = None) -> dict[str, Any]:
        """The run that was queued, or the one that is queued or runs already. `key` as for `create`."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        run: dict[str, Any] = self.request("POST", f"{_of(name)}/runs", query=[("reason", reason)], headers=headers)
        return run

    def events(self, name: str | None = None, *, after: str | None = None) -> Iterator[ServerEvent]:
        """As they happen, until the server ends the stream or nothing, not even a sign of life, came for a minute.
        `after` is the id of the last event that you had: the stream goes on with what came after it. An event `dropped`
        comes first where the server does not know that any more."""
        return self._stream(f"{_of(name)}/events" if name else "/events", after)

    def changes(
        self, name: str, *, table: str | None = None, op: str | None = None, after: str | None = None
    ) -> Iterator[ServerEvent]:
        """What is captured from now on, each event's JSON in `data`; `table` is a pattern, `op` as insert or delete.
        `after` as for `events`; the ids are offsets of the log."""
        query = urlencode([(key, value) for key, value in (("table", table), ("op", op)) if value])
        return self._stream(f"{_of(name)}/log/stream" + (f"?{query}" if query else ""), after)

    def _stream(self, path: str, after: str | None) -> Iterator[ServerEvent]:
        headers = {"Last-Event-ID": after} if after else None
        connection, response = self._send("GET", path, headers=headers, timeout=60.0)
        kind = number = ""
        try:
            while line := response.readline():
                field, _, value = line.decode().rstrip("\n").partition(": ")
                match field:
                    case "id":
                        number = value
                    case "event":
                        kind = value
                    case "data":
                        yield ServerEvent(kind, orjson.loads(value), number)
                        number = ""
        except (OSError, http.client.HTTPException) as error:
            raise self._lost_error(error) from error
        finally:
            connection.close()

    # ---------------------------------------------------------------- how

    def request(
        self, method: str, path: str, body: Any = None, *, query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # fmt: skip
        """Any call of the API: what it answers, parsed; None for an empty answer."""
        if query:
            path = f"{path}?{urlencode(query)}"
        connection, response = self._send(method, path, body, headers)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost_error(error) from error
        finally:
            connection.close()
        if not content:
            return None
        is_json = "json" in (response.getheader("content-type") or "")
        return orjson.loads(content) if is_json else content.decode()

    def _send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:  # fmt: skip
        given = {"User-Agent": f"tidemill/{__version__}", **(headers or {})}
        if self._token:
            given["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            given["Content-Type"] = "application/json"
        wait = timeout or self._timeout
        connection: http.client.HTTPConnection
        if self._secure:
            context = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=wait, context=context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=wait)
        try:
            connection.request(method, self._base + path, orjson.dumps(body) if body is not None else None, given)
            response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(response.status, response.read(1 << 20), self.url)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._lost_error(error) from error
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _lost_error(self, error: Exception) -> ServerError:
        lost = ServerError(
            f"the server did not answer: {getattr(error, 'strerror', None) or repr(error)}",
            where=self.url,
            fix=_advice(self.url, error),
        )
        lost.exit_code = 3  # something outside is missing
        return lost


def _advice(url: str, error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "TIDEMILL_TLS_CA names the CA of its certificate; the address must be one that the certificate is for."
    if url.startswith("https:") and isinstance(error, ConnectionResetError | ssl.SSLError):  # told after the handshake
        return (
            "Check that `tidemill serve` runs there with TLS. If it asks for client certificates (--tls-client-ca), "
            "TIDEMILL_TLS_CERT and TIDEMILL_TLS_KEY name yours."
        )
    if url.startswith("http:") and isinstance(error, ConnectionResetError):  # no answer is what TLS says to plain HTTP
        return "Check the address: where the server speaks TLS it begins with https://."
    return "Check that `tidemill serve` runs there, and the address."


def _refusal(status: int, content: bytes, url: str) -> TidemillError:
    try:
        problem = orjson.loads(content)
        data = {name: str(problem.get(name, "")) for name in ("code", "what", "where", "fix")}
    except (orjson.JSONDecodeError, AttributeError):
        return ServerError(
            "what answers there is no Tidemill server", where=url,
            fix=f"Check the address, and what stands between (it answered with HTTP {status}).",
        )  # fmt: skip
    more = "\n".join(f"{each['where']}: {each['what']}" for each in problem.get("problems") or () if len(data) > 1)
    if more and more not in data["what"]:
        data["where"] = data["where"] or more
    error = from_data(data, ServerError)  # type: ignore[arg-type]
    if isinstance(error, Unauthenticated):  # the server speaks of a header, which is ours to send
        error.where, error.fix = url, "Give a token that is valid: TIDEMILL_TOKEN; `tidemill token create` makes one."
    return error


def pipeline_of(found: Mapping[str, Any]) -> RemotePipeline:
    return RemotePipeline(**{each.name: found.get(each.name) for each in fields(RemotePipeline)})  # type: ignore[arg-type]


def _of(name: str) -> str:
    return f"/pipelines/{quote(name, safe='')}"


def _if_match(version: str | None) -> dict[str, str]:
    return {"If-Match": f'"{version}"'} if version else {}
