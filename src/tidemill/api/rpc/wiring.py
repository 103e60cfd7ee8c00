"""Binds the services of proto/ to classes with a plain method per call, and calls them: the one place where a token is
checked, a thread is taken, and an error becomes a gRPC status.

A method is named as in the .proto, in snake case, and says who may call it: `@needs(Role.OPERATOR)`. It is given the
request and the `Caller`, runs in a thread, and returns the reply or raises. A streaming one is an async generator.

Every call is bound as a stream of requests, of which there must be one: so the token is asked for before a request is
waited for, which must come within seconds. Else whoever reaches the port could open calls, send nothing, and take all
that the server has.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from tidemill.api import problems
from tidemill.api.proto import service
from tidemill.api.rate import RateLimit
from tidemill.api.rpc.arguments import check_strings, check_text
from tidemill.errors import AccessRefused, ConfigError, TidemillError, TooManyRequests, Unauthenticated, to_data
from tidemill.service.cause import Cause, current_actor
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.tokens import Principal, Role, Tokens
from tidemill.telemetry import events

ERROR_METADATA = "tidemill-error"
REQUEST_SECONDS = 30.0
"""How long a call may take to send its request."""
_LONGEST_NAME, _LONGEST_REASON = 100, 500
_LONGEST_METADATA = 1500  # each of its parts, as written
_HUMP = re.compile(r"(?<!^)(?=[A-Z])")
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED, 404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION, 412: grpc.StatusCode.ABORTED, 422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED, 500: grpc.StatusCode.INTERNAL, 502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
}  # fmt: skip

Handler = TypeVar("Handler", bound=Callable[..., Any])


def needs(role: Role, *, server: bool = False, pool: str = "") -> Callable[[Handler], Handler]:
    """`server`: for what is about the server as a whole, a token for one tenant or pipeline is not enough. `pool`: the
    threads that it runs in; without a name those of looks for a viewer, and of changes for others."""

    def mark(handler: Handler) -> Handler:
        handler.needed_role, handler.needs_server = role, server  # type: ignore[attr-defined]
        handler.pool = pool or ("looks" if role is Role.VIEWER else "changes")  # type: ignore[attr-defined]
        return handler

    return mark


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the token that said so. `gone` is set when nobody waits for the reply any more."""

    principal: Principal
    token: str
    gone: threading.Event = field(default_factory=threading.Event)

    def cause(self, reason: str) -> Cause:
        return Cause(self.principal.actor, check_text(reason, "reason", longest=_LONGEST_REASON))


class Door:
    """Asks for the token of each call. `tokens` None: everybody may do everything, only for loopback."""

    def __init__(self, tokens: Tokens | None, threads: Executor, rate: float | None = None) -> None:
        """`rate`: calls a second of one token, or of one address that has none."""
        self._tokens, self._threads = tokens, threads
        self._rate = RateLimit(rate) if rate is not None else None

    async def admit(self, context: Any, handler: Any) -> Caller:
        role: Role = handler.needed_role
        token = _token(context)
        principal = await self.identify(token)
        self.count(principal.id if principal is not None else address_of(context))
        if principal is None:
            raise Unauthenticated(
                "this needs a valid token",
                fix="Send the metadata `authorization: Bearer TOKEN`; `tidemill token create` makes one.",
            )
        if not principal.role.covers(role):
            raise AccessRefused(
                f"the role {principal.role} does not allow this", where=f"token {principal.id}",
                fix=f"It needs the role {role}.",
            )  # fmt: skip
        if handler.needs_server:
            principal.scope.check_server(handler.__qualname__)
        return Caller(principal, token)

    def count(self, caller: str) -> None:
        """`TooManyRequests` beyond the rate; guesses of tokens count against the address that they come from."""
        wait = self._rate.take(caller) if self._rate is not None else 0.0
        if wait:
            raise TooManyRequests(
                "there are more requests than this server takes from one caller",
                fix=f"Wait {wait:.1f} seconds, then go on more slowly.",
            )

    async def recognize(self, context: Any) -> Principal | None:
        return await self.identify(_token(context))

    async def identify(self, token: str) -> Principal | None:
        if self._tokens is None:
            return Principal("", current_actor(), Role.ADMIN)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._tokens.authenticate, token)


def handlers(name: str, implementation: Any, door: Door, pools: Mapping[str, Executor]) -> grpc.GenericRpcHandler:
    """Of one service of proto/."""
    descriptor = service(name)
    bound = {}
    for method in descriptor.methods:
        handler = getattr(implementation, _HUMP.sub("_", method.name).lower())
        reads = message_factory.GetMessageClass(method.input_type).FromString
        writes = message_factory.GetMessageClass(method.output_type).SerializeToString
        if method.server_streaming:
            call = _stream(handler, door, reads)
            bound[method.name] = grpc.stream_stream_rpc_method_handler(call, None, writes)
        else:
            call = _unary(handler, door, pools[handler.pool], reads)
            bound[method.name] = grpc.stream_unary_rpc_method_handler(call, None, writes)
    return grpc.method_handlers_generic_handler(descriptor.full_name, bound)


async def read_request(requests: AsyncIterator[bytes], reads: Callable[[bytes], Any]) -> Any:
    """The one request of a call. `ConfigError` if there is none in time, or if it is none of ours."""
    try:
        request = reads(await asyncio.wait_for(anext(requests), REQUEST_SECONDS))
    except (StopAsyncIteration, TimeoutError) as error:
        raise ConfigError("the call has no request", fix="Send it with the call.") from error
    except DecodeError as error:
        raise ConfigError(
            "the request cannot be read", fix="Compile operations.proto and flows.proto of this version."
        ) from error
    check_strings(request)
    return request


def _unary(
    handler: Callable[..., Any], door: Door, threads: Executor, reads: Callable[[bytes], Any]
) -> Callable[[Any, Any], Any]:
    async def call(requests: AsyncIterator[bytes], context: Any) -> Any:
        try:
            caller = await door.admit(context, handler)
            request = await read_request(requests, reads)
            try:
                return await asyncio.get_running_loop().run_in_executor(threads, handler, request, caller)
            finally:
                caller.gone.set()
        except Exception as error:  # noqa: BLE001  every failure becomes a status
            await abort(context, error, handler.__qualname__)

    return call


def _stream(
    handler: Callable[..., AsyncIterator[Any]], door: Door, reads: Callable[[bytes], Any]
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        try:
            caller = await door.admit(context, handler)
            async for reply in handler(await read_request(requests, reads), caller):
                yield reply
        except Exception as error:  # noqa: BLE001  as above
            await abort(context, error, handler.__qualname__)

    return call


async def abort(context: Any, error: Exception, method: str) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, TidemillError):
        events.fail("rpc.broken", method=method, error=f"{type(error).__qualname__}: {error}")
        await context.abort(
            grpc.StatusCode.INTERNAL, "the server has a defect here: see the event rpc.broken of its log"
        )
    assert isinstance(error, TidemillError)
    data = to_data(error)
    parts = {name: _shorten(str(data.get(name, ""))) for name in ("code", "what", "where", "fix")}
    # The standard library's encoder writes ASCII only, as metadata must be.
    context.set_trailing_metadata(((ERROR_METADATA, json.dumps(parts)),))
    await context.abort(_STATUS[problems.status_of(error)], _shorten(f"{error.what}. {error.fix}".strip()))


def _shorten(text: str) -> str:
    """Clients refuse a call with more than 8 KiB of metadata, and say nothing of what was wrong."""
    written = json.dumps(text)
    if len(written) <= _LONGEST_METADATA:
        return text
    return text[: len(text) * _LONGEST_METADATA // len(written) // 2] + "…"


def _token(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            return value[7:].strip()
    return ""


def address_of(context: Any) -> str:
    """Without the port: `ipv4:127.0.0.1:4711`."""
    return str(context.peer()).rpartition(":")[0]


def find_name(control: ControlPlane, name: str, caller: Caller) -> str:
    """An empty name means the only pipeline there is, for this caller."""
    check_text(name, "pipeline", longest=_LONGEST_NAME)
    scope = caller.principal.scope
    there = [each for each in control.names if control.covers(scope, each)]
    if not name and len(there) == 1:
        return there[0]
    control.check_scope(scope, name)
    return name
