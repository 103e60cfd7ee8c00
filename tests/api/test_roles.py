"""Every path of the description, asked by every role: who may is answered, who may not is refused before anything else.

A route that is added has to be put down here, so that nobody gives it away by forgetting to say whose it is.
"""

from __future__ import annotations

from tests.api.conftest import Harness, document, raw
from tests.api.test_security import OPEN
from tidemill.service.server.scope import Scope
from tidemill.service.server.tokens import Role

NEEDED = {
    Role.VIEWER: """
        GET /pipelines, GET /pipelines/{name}, GET /pipelines/{name}/status, GET /pipelines/{name}/transitions,
        GET /pipelines/{name}/schemas, GET /pipelines/{name}/checkpoints, GET /pipelines/{name}/dead-letters,
        GET /pipelines/{name}/snapshots, GET /pipelines/{name}/runs, GET /pipelines/{name}/ddl,
        GET /pipelines/{name}/ddl/{number}, GET /pipelines/{name}/sensing/schemas, GET /pipelines/{name}/sensing/stats,
        GET /pipelines/{name}/drift, GET /pipelines/{name}/events, GET /events, GET /status/stream, GET /version,
        GET /components, GET /components/{family}/{component}, GET /log-level
    """,
    Role.OPERATOR: """
        POST /pipelines/{name}/start, POST /pipelines/{name}/pause, POST /pipelines/{name}/resume,
        POST /pipelines/{name}/stop, POST /pipelines/{name}/restart, POST /pipelines/{name}/drain,
        POST /pipelines/{name}/recover, POST /pipelines/{name}/doctor, POST /pipelines/{name}/checkpoints,
        POST /pipelines/{name}/runs, POST /pipelines/{name}/verify, POST /pipelines/{name}/replay,
        POST /pipelines/{name}/snapshots, POST /pipelines/{name}/snapshots/pause,
        POST /pipelines/{name}/snapshots/resume, POST /pipelines/{name}/snapshots/cancel,
        POST /pipelines/{name}/dead-letters/replay, POST /pipelines/{name}/dead-letters/purge,
        GET /pipelines/{name}/dead-letters/{number}, GET /pipelines/{name}/log, GET /pipelines/{name}/ddl/plan,
        GET /pipelines/{name}/log/stream,
        POST /pipelines/{name}/ddl/{number}/approve, POST /pipelines/{name}/ddl/{number}/reject,
        POST /pipelines/{name}/ddl/{number}/apply, GET /pipelines/{name}/sensing/schemas/{table},
        GET /pipelines/{name}/sensing/schemas/{table}/json-schema, GET /pipelines/{name}/drift/values, POST /validate
    """,
    Role.ADMIN: """
        POST /pipelines, PATCH /pipelines/{name}, PUT /pipelines/{name}, DELETE /pipelines/{name}, GET /audit,
        PUT /log-level
    """,
}
ROLE_OF = {each.strip(): role for role, listed in NEEDED.items() for each in listed.split(",")}
BODY = {"level": "INFO", "mode": "snapshot", "from": "0", "offset": 0, "all": True, **document("there-is-none")}
WHOLE_SERVER = {"PUT /log-level"}


def routes(server: Harness) -> list[str]:
    paths = server.client().request("GET", "/openapi.json")["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods if path not in OPEN]


def ask(server: Harness, route: str, token: str) -> tuple[int, str]:
    """Status and code of the answer."""
    method, path = route.split(" ")
    for name, value in (("name", "there-is-none"), ("number", "1"), ("table", "t"), ("family", "sinks")):
        path = path.replace(f"{{{name}}}", value)
    body = BODY if method in ("POST", "PUT", "PATCH") else None
    path = path.replace("{component}", "files")
    status, answer, _ = raw(server, method, path, body, {"Authorization": f"Bearer {token}" if token else ""})
    return status, answer["code"] if status >= 400 else ""


def test_every_route_has_a_role_and_refuses_a_smaller_one(server: Harness) -> None:
    assert set(routes(server)) == set(ROLE_OF)
    token = {role: server.tokens.create("ann", role)[0] for role in Role}
    for route, needed in ROLE_OF.items():
        assert ask(server, route, "") == (401, "unauthenticated"), route
        for role in Role:
            if not role.covers(needed):
                assert ask(server, route, token[role]) == (403, "access-refused"), (route, role)
            elif route not in ("GET /events", "GET /status/stream"):  # those never end
                assert ask(server, route, token[role])[0] not in (401, 403, 500), (route, role)
    assert list(server.client().pipelines()) == [], "no body was a document"


def test_what_is_about_no_pipeline_shows_nothing_of_another_tenants(server: Harness) -> None:
    """What has a name in its path is tried in test_tenants.py."""
    theirs = document("orders-of-the-shop", dlq={})
    theirs["metadata"] |= {"tenant": "shop", "labels": {"of": "the-shop"}}
    server.client().create(theirs)
    token = server.tokens.create("ann", Role.ADMIN, scope=Scope(tenant="hotel"))[0]
    for route in ROLE_OF:
        method, path = route.split(" ")
        if "{name}" in path or path in ("/events", "/status/stream"):
            continue
        body = theirs if method in ("POST", "PUT") else None
        path = path.replace("{family}", "sinks").replace("{component}", "files")
        status, answer, _ = raw(server, method, path, body, {"Authorization": f"Bearer {token}"})
        assert (status == 200) == (method == "GET"), (route, status, answer)
        if method == "GET":  # others say again what they were sent
            assert "the-shop" not in str(answer), route
    assert raw(server, "GET", "/readyz", headers={"Authorization": f"Bearer {token}"})[1]["pipelines"] == []
