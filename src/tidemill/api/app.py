"""The application: all routes, and what every request passes. Serves no pages and no cross-origin requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request

from tidemill import __version__
from tidemill.api import problems
from tidemill.api.event_journal import EventJournal
from tidemill.api.examples import add_examples
from tidemill.api.guard import MAX_BODY, OPEN, RequestGuard
from tidemill.api.idempotency import Idempotency
from tidemill.api.routes import (
    checkpoints,
    ddl,
    dead_letters,
    doctor,
    events,
    log,
    pipelines,
    recovery,
    replay,
    runs,
    schemas,
    sensing,
    snapshots,
    system,
    verify,
)
from tidemill.api.shapes import ProblemShape
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.tokens import Tokens

_ABOUT = """Pipelines of one Tidemill server.

Every request but those for health and for this description carries `Authorization: Bearer TOKEN`; a token has the role
viewer, operator or admin. Errors are `application/problem+json` with a stable `code`, `what` happened, `where`, and the
`fix` to try. A POST may carry an `Idempotency-Key`: repeated, it gets its first answer again."""

_REFUSALS = {
    "400": "The request is malformed.",
    "401": "There is no valid token.",
    "403": "The token's role does not allow it.",
    "404": "There is no such pipeline.",
    "408": "The body did not arrive in time.",
    "409": "Its state does not allow it.",
    "412": "It was changed since it was read.",
    "413": "The body is too large.",
    "422": "The request or the document is wrong.",
    "429": "There are too many requests, or streams of events.",
    "502": "The source or the destination does not answer, or refuses.",
    "503": "The server cannot do it now.",
}

_ROUTES = (
    system, pipelines, recovery, events, schemas, doctor, checkpoints, dead_letters, log, snapshots, verify, replay,
    sensing, ddl, runs,
)  # fmt: skip


def create_app(
    control: ControlPlane, tokens: Tokens | None, *, max_body: int = MAX_BODY, rate: float | None = None
) -> FastAPI:
    """`tokens` None: nobody is asked who they are. Only for loopback. `rate`: requests a second of one caller."""
    app = FastAPI(
        title="Tidemill", version=__version__, description=_ABOUT, docs_url=None, redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip
    for module in _ROUTES:
        app.include_router(module.router)
    problems.install(app)
    app.state.control, app.state.streams = control, Counter()
    app.state.journal = EventJournal(control)

    async def still_valid(request: Request) -> bool:
        if tokens is None:
            return True
        token = request.headers.get("authorization", "").partition(" ")[2].strip()
        return await anyio.to_thread.run_sync(tokens.authenticate, token) is not None

    app.state.still_valid = still_valid
    app.add_middleware(Idempotency, store=control.store, leases=control.runtime.leases)
    app.add_middleware(RequestGuard, tokens=tokens, max_body=max_body, rate=rate)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """OpenAPI with what holds for every route: the token, and errors as problems."""
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(_describe_api(FastAPI.openapi(app)))
        return made

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_api(schema: dict[str, Any]) -> dict[str, Any]:
    parts = schema.setdefault("components", {})
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schemas = parts.setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    own = ProblemShape.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(own.pop("$defs", {}))
    schemas["ProblemShape"] = own
    problem = {"$ref": "#/components/schemas/ProblemShape"}
    parts["responses"] = {
        code: {"description": about, "content": {problems.MEDIA_TYPE: {"schema": problem}}}
        for code, about in _REFUSALS.items()
    }
    key = {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 200},
           "description": "Names this request: repeated, it gets its first answer again.",
           "example": "7d1f0c2a"}  # fmt: skip
    parts["parameters"] = {"IdempotencyKey": key}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            given = operation["responses"]
            given.pop("422", None)
            if path not in OPEN:
                operation["security"] = [{"token": []}]
                for code in _REFUSALS:
                    given.setdefault(code, {"$ref": f"#/components/responses/{code}"})
            if method == "post":
                operation.setdefault("parameters", []).append({"$ref": "#/components/parameters/IdempotencyKey"})
    add_examples(schema)
    return schema
