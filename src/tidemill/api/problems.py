"""Errors as application/problem+json (RFC 9457), with our code, what, where and fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tidemill.config import DocumentError
from tidemill.errors import (
    AccessRefused,
    AlreadyRunning,
    ChangedMeanwhile,
    CheckpointError,
    ConfigError,
    DeliveryError,
    EnvironmentProblem,
    LifecycleError,
    LogError,
    SourceError,
    StateError,
    TidemillError,
    TooManyRequests,
    TooManyStreams,
    Unauthenticated,
    UnknownPipeline,
)
from tidemill.telemetry import events

MEDIA_TYPE = "application/problem+json"

# The most specific class decides.
_STATUS: dict[type[TidemillError], int] = {
    Unauthenticated: 401, AccessRefused: 403, UnknownPipeline: 404, LifecycleError: 409, AlreadyRunning: 409,
    CheckpointError: 409, ChangedMeanwhile: 412, ConfigError: 422, TooManyStreams: 429, TooManyRequests: 429,
    DeliveryError: 502, SourceError: 502,
    EnvironmentProblem: 503, StateError: 503, LogError: 503,
}  # fmt: skip
_HTTP_FIX = {
    404: "GET /openapi.json lists every path.",
    405: "GET /openapi.json lists the methods of every path.",
}


def status_of(error: TidemillError) -> int:
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def problem(
    status: int, code: str, what: str, *, where: str = "", fix: str = "", headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Response:  # fmt: skip
    """`more` are further members of the object."""
    body = {
        "type": f"urn:tidemill:error:{code}", "title": what, "status": status,
        "code": code, "what": what, "where": where, "fix": fix, **(more or {}),
    }  # fmt: skip
    return Response(orjson.dumps(body, default=str), status, dict(headers or {}), MEDIA_TYPE)


def render(error: TidemillError) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthenticated) else {}
    more: dict[str, Any] = {}
    if isinstance(error, DocumentError):
        more["problems"] = [
            {"path": list(each.path), "where": each.where, "what": each.what, "fix": each.fix}
            for each in error.problems
        ]
    return problem(
        status_of(error), error.code, error.what, where=error.where, fix=error.fix, headers=headers, more=more
    )


def install(app: FastAPI) -> None:
    """Every error of a handler, and what the framework itself refuses."""

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, TidemillError)
        return render(error)

    async def render_malformed(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = [
            {"path": [str(step) for step in each["loc"]], "where": ".".join(map(str, each["loc"])),
             "what": str(each["msg"]), "fix": ""}
            for each in error.errors()
        ]  # fmt: skip
        first = found[0] if found else {"what": "the request is malformed", "where": ""}
        return problem(
            422, "request-invalid", str(first["what"]), where=str(first["where"]),
            fix="GET /openapi.json says what the request must look like.", more={"problems": found},
        )  # fmt: skip

    async def render_refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem(
            error.status_code, f"http-{error.status_code}", str(error.detail),
            fix=_HTTP_FIX.get(error.status_code, ""), headers=error.headers,
        )  # fmt: skip

    async def render_broken(request: Request, error: Exception) -> Response:
        events.fail("api.broken", path=request.url.path, error=f"{type(error).__qualname__}: {error}")
        return problem(
            500, "unexpected", "the server has a defect here", where=f"{request.method} {request.url.path}",
            fix="Please report it with the event api.broken of the server's log.",
        )  # fmt: skip

    app.add_exception_handler(TidemillError, ours)
    app.add_exception_handler(RequestValidationError, render_malformed)
    app.add_exception_handler(HTTPException, render_refused)
    app.add_exception_handler(Exception, render_broken)
