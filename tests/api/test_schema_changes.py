"""Schema changes over the API: listed, shown, decided once, with roles and in the audit trail."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.api.conftest import Harness, document
from tidemill.contracts.schema_change_store import SinkOutcome, StoredChange
from tidemill.errors import AccessRefused, ConfigError, LifecycleError
from tidemill.model.position import Position
from tidemill.service.server.tokens import Role
from tidemill.state import open_store


def seen(server: Harness, *tables: str) -> None:
    """Changes that a stream met and waits at."""
    with closing(open_store(server.state)) as state:
        for offset, table in enumerate(tables):
            change = StoredChange(0, offset, Position("0/7"), table, ("add_column",), "ALTER", "", "", "2026-01-31")
            number = state.schema_changes.record("orders", change).number
            state.schema_changes.note("orders", number, "bucket-orders", SinkOutcome(("ALTER TABLE t ADD n",)))


def test_a_change_is_listed_decided_once_and_on_record(server: Harness) -> None:
    admin, operator, viewer = (server.client(role) for role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER))
    admin.create(document("orders", ddl={"approvers_note": "required"}))
    assert viewer.request("GET", "/pipelines/orders/ddl") == []
    seen(server, "a", "b", "c")
    listed: list[dict[str, Any]] = viewer.request("GET", "/pipelines/orders/ddl")
    assert [(each["number"], each["table"], each["status"]) for each in listed] == [
        (3, "c", "pending"), (2, "b", "pending"), (1, "a", "pending"),
    ]  # fmt: skip
    shown = viewer.request("GET", "/pipelines/orders/ddl/1")
    assert (shown["text"], shown["sinks"][0]["statements"]) == ("ALTER", ["ALTER TABLE t ADD n"])
    for method, path in (("POST", "/ddl/1/approve"), ("POST", "/ddl/1/apply"), ("GET", "/ddl/plan")):
        with pytest.raises(AccessRefused, match="viewer"):
            viewer.request(method, f"/pipelines/orders{path}")
    with pytest.raises(ConfigError, match="needs a reason"):
        operator.request("POST", "/pipelines/orders/ddl/1/approve")
    decided = operator.request("POST", "/pipelines/orders/ddl/1/approve?reason=fine")
    assert (decided["status"], decided["reason"]) == ("approved", "fine")
    assert operator.request("POST", "/pipelines/orders/ddl/2/reject?reason=no")["status"] == "rejected"
    assert operator.request("POST", "/pipelines/orders/ddl/3/apply?reason=done")["status"] == "applied"
    with pytest.raises(LifecycleError, match="is approved already"):
        operator.request("POST", "/pipelines/orders/ddl/1/reject?reason=late")
    with pytest.raises(ConfigError, match="no schema change 9"):
        viewer.request("GET", "/pipelines/orders/ddl/9")
    assert operator.request("GET", "/pipelines/orders/ddl/plan") == []
    trail = [(each["action"], each["detail"]) for each in admin.request("GET", "/audit")]
    assert trail[:3] == [
        ("apply schema change", "3 of c: done"), ("reject schema change", "2 of b: no"),
        ("approve schema change", "1 of a: fine"),
    ]  # fmt: skip
