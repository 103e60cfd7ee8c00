"""The answer to a POST that is repeated: `Idempotency-Key` names the request, and its first answer is given again.

For a day, per token, also by another server of the same state store. While it is under way the key is claimed in the
store, so that another server does not run it too; the claim of a server that is gone counts no more. A refusal or a
failure is not kept, because it changed nothing: the request may be sent again with the same key.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import anyio.to_thread
import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.api import problems
from tidemill.contracts.installation import KeyClaim, StoredAnswer
from tidemill.errors import StateError, TidemillError
from tidemill.service.lease.leases import LeaseKeeper
from tidemill.state.installation import InstallationStore

_KEPT = timedelta(days=1)
_LONGEST = 200
_SHOWN = ("content-type", "etag", "location")


class Idempotency:
    def __init__(self, app: ASGIApp, *, store: InstallationStore, leases: LeaseKeeper | None) -> None:
        """`leases` None: there is no other server of this store."""
        self._app, self._store, self._leases = app, store, leases
        self._us = leases.holder if leases is not None else "this server"
        self._under_way: set[tuple[str, str]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = Headers(scope=scope).get("idempotency-key") if scope["type"] == "http" else None
        principal = scope["state"]["principal"] if key is not None else None
        if key is None or principal is None or scope["method"] != "POST":  # for who has no token nothing is kept
            await self._app(scope, receive, send)
            return
        caller = principal.id
        if (caller, key) in self._under_way:
            await _is_under_way()(scope, receive, send)
            return
        self._under_way.add((caller, key))
        try:
            answer = await self._recall(scope, caller, key) or await self._run(scope, receive, caller, key)
        except TidemillError as error:
            answer = problems.render(error)
        finally:
            self._under_way.discard((caller, key))
        await answer(scope, receive, send)  # who has it may repeat the request at once

    async def _recall(self, scope: Scope, caller: str, key: str) -> ASGIApp | None:
        if not 1 <= len(key) <= _LONGEST or not key.isascii() or not key.isprintable():
            return problems.problem(
                422, "idempotency-key-invalid", "the idempotency key is no key",
                where="Idempotency-Key", fix=f"Send 1 to {_LONGEST} printable ASCII characters.",
            )  # fmt: skip
        known = await anyio.to_thread.run_sync(self._claim, caller, key)
        if known is None:
            return None
        if isinstance(known, KeyClaim):
            return _is_under_way()
        if known.request != _digest(scope):
            return problems.problem(
                422, "idempotency-key-reused", "this key was used for another request", where="Idempotency-Key",
                fix="Use a new key for every request that is not a repetition.",
            )  # fmt: skip
        headers = {**orjson.loads(known.headers), "Idempotent-Replayed": "true"}
        return Response(known.body.encode(), known.status, headers)

    def _claim(self, caller: str, key: str) -> StoredAnswer | KeyClaim | None:
        """None: the key is ours. A claim of our own is from a request whose end the store did not hear of."""
        if self._leases is not None:
            self._leases.announce()  # so that others can tell that we are there
        ours = KeyClaim(self._us, datetime.now(UTC).isoformat(timespec="seconds"))
        known = self._store.claim_key(caller, key, ours, instead_of=self._us)
        if not isinstance(known, KeyClaim):
            return known
        if self._leases is not None and self._leases.is_there(known.claimant):
            return known
        return self._store.claim_key(caller, key, ours, instead_of=known.claimant)

    async def _run(self, scope: Scope, receive: Receive, caller: str, key: str) -> ASGIApp:
        """The answer, which was kept: who has it can rely on its repetition."""
        try:
            messages = await self._ask(scope, receive, caller, key)
        finally:
            with suppress(StateError):  # the next request with this key takes what is ours
                await anyio.to_thread.run_sync(self._store.release_key, caller, key, self._us)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            for message in messages:
                await send(message)

        return answer

    async def _ask(self, scope: Scope, receive: Receive, caller: str, key: str) -> list[Message]:
        messages: list[Message] = []

        async def collect(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, collect)
        start = messages[0]
        if start["status"] < 400:
            headers = MutableHeaders(raw=list(start["headers"]))
            shown = {name: headers[name] for name in _SHOWN if name in headers}
            body = b"".join(message.get("body", b"") for message in messages[1:]).decode()
            now = datetime.now(UTC)
            answer = StoredAnswer(
                _digest(scope), start["status"], orjson.dumps(shown).decode(), body, now.isoformat(timespec="seconds")
            )
            forget = (now - _KEPT).isoformat(timespec="seconds")
            await anyio.to_thread.run_sync(lambda: self._store.keep_answer(caller, key, answer, forget_before=forget))
        return messages


def _is_under_way() -> Response:
    return problems.problem(
        409, "request-under-way", "a request with this key is under way", where="Idempotency-Key",
        fix="Wait for its answer, or ask again a little later.", headers={"Retry-After": "1"},
    )  # fmt: skip


def _digest(scope: Scope) -> str:
    """Of what makes two requests the same."""
    parts = (scope["method"].encode(), scope["path"].encode(), scope["query_string"], scope["state"]["body"])
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
