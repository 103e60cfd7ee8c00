"""What every request passes before a handler sees it: a limit of its size, and who it is from.

`tokens` None means that nobody is asked: only on loopback. Then a page in the user's browser is kept out, which could
reach us too: the request must name a loopback host, and not come from another origin.
"""

from __future__ import annotations

import math
from typing import Any

import anyio
import anyio.to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.api import problems
from tidemill.api.rate import RateLimit
from tidemill.errors import AccessRefused, TidemillError, Unauthenticated
from tidemill.service.cause import current_actor
from tidemill.service.server.tokens import Principal, Role, Tokens

OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})
MAX_BODY = 256 << 10
_BODY_SECONDS = 30.0
_AUTHENTICATING = 8
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


class RequestGuard:
    """Puts `principal` (None on an open path without a token) and `body` into the request's state."""

    def __init__(
        self, app: ASGIApp, *, tokens: Tokens | None, max_body: int = MAX_BODY, rate: float | None = None
    ) -> None:
        """`rate`: requests a second of one token, or of one address that has none."""
        self._app, self._tokens, self._max_body = app, tokens, max_body
        self._rate = RateLimit(rate) if rate is not None else None
        self._limiter: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            principal = await self._principal(scope["path"], headers)
        except TidemillError as error:
            # Guesses of tokens count too, against the address that they come from.
            wait = self._rate.take(str((scope.get("client") or [""])[0])) if self._rate is not None else 0.0
            await (_too_many(wait) if wait else problems.render(error))(scope, receive, send)
            return
        if self._rate is not None and scope["path"] != "/healthz":
            wait = self._rate.take(principal.id if principal is not None else str((scope.get("client") or [""])[0]))
            if wait:
                await _too_many(wait)(scope, receive, send)
                return
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            await _nul()(scope, receive, send)
            return
        # What is open to everybody reads no body: who sends none, or slowly, would hold a connection without a token.
        body = b"" if scope["path"] in OPEN else await self._body(headers, receive)
        if isinstance(body, Response):
            await body(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        state["principal"], state["body"] = principal, body
        await self._app(scope, _replay(body, receive), send)

    async def _principal(self, path: str, headers: Headers) -> Principal | None:
        if self._tokens is None:
            _refuse_strangers(headers)
            return Principal("", current_actor(), Role.ADMIN)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        found = None
        if scheme.lower() == "bearer":
            # Threads of their own: those of handlers may all be waiting for pipelines.
            self._limiter = self._limiter or anyio.CapacityLimiter(_AUTHENTICATING)
            found = await anyio.to_thread.run_sync(self._tokens.authenticate, token.strip(), limiter=self._limiter)
        if found is None and path not in OPEN:
            raise Unauthenticated(
                "this needs a valid token",
                where=path,
                fix="Send `Authorization: Bearer TOKEN`; `tidemill token create` makes one.",
            )
        return found

    async def _body(self, headers: Headers, receive: Receive) -> bytes | Response:
        declared = headers.get("content-length", "0")
        too_large = problems.problem(
            413, "body-too-large", f"the body is larger than {self._max_body} bytes", fix="No document needs that much."
        )
        if declared.isdigit() and int(declared) > self._max_body:
            return too_large
        body = bytearray()
        with anyio.move_on_after(_BODY_SECONDS) as time:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return bytes(body)  # the client is gone
                body += message.get("body", b"")
                if len(body) > self._max_body:
                    return too_large
                if not message.get("more_body"):
                    return bytes(body)
        assert time.cancelled_caught
        return problems.problem(408, "body-too-slow", "the body did not arrive in time", fix="Send it again.")


def _too_many(wait: float) -> Response:
    return problems.problem(
        429, "too-many-requests", "there are more requests than this server takes from one caller",
        fix="Wait, then go on more slowly.", headers={"Retry-After": str(math.ceil(wait))},
    )  # fmt: skip


def _nul() -> Response:
    return problems.problem(
        422, "request-invalid", "the address has the character NUL", where="the path, or a parameter",
        fix="Leave it out: no name and no text has it.",
    )  # fmt: skip


def _refuse_strangers(headers: Headers) -> None:
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    origin = headers.get("origin")
    if name.lower() not in _LOOPBACK or (origin is not None and origin.partition("://")[2] != host):
        raise AccessRefused(
            "without tokens the server answers only programs on this machine",
            where=f"Host {host}" + (f", Origin {origin}" if origin else ""),
            fix="Use http://127.0.0.1, not from a page of another site; or start the server with tokens.",
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
