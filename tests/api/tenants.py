"""Documents of a tenant, and clients whose token is for less than everything."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import Harness, document
from tidemill.api.client import ServerClient
from tidemill.service.server.scope import Scope
from tidemill.service.server.tokens import Role


def of_tenant(name: str, tenant: str) -> dict[str, Any]:
    made = document(name, dlq={})
    made["metadata"]["tenant"] = tenant
    return made


def scoped(server: Harness, role: Role = Role.ADMIN, **scope: str) -> ServerClient:
    return ServerClient(server.url, server.tokens.create("ann", role, scope=Scope(**scope))[0], timeout=30)
