"""Snapshots, replays and the log level over the API; the pipelines are stand-ins, what is kept of them is real."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.api.conftest import Harness, document
from tidemill.api.routes.verify import VerifiedTable
from tidemill.contracts import RowFault
from tidemill.errors import AccessRefused, ConfigError, LifecycleError
from tidemill.service.server.tokens import Role
from tidemill.service.verify.verdicts import KeyVerdict, TableVerdict
from tidemill.telemetry import events


def copied(**config: Any) -> dict[str, Any]:
    """A document whose source can copy its tables; nothing is ever at that address."""
    source = {"id": "orders", "dsn": "postgresql://cdc@127.0.0.1:1/shop", "tables": ["public.orders"], **config}
    made = document("orders")
    return {**made, "spec": {**made["spec"], "source": {"type": "postgres", "config": source}}}


def test_a_snapshot_is_started_paused_resumed_and_cancelled(server: Harness) -> None:
    admin, operator = server.client(), server.client(Role.OPERATOR)
    admin.create(copied(snapshot={"mode": "never"}))
    with pytest.raises(LifecycleError, match="no snapshot"):
        operator.request("POST", "/pipelines/orders/snapshots/pause")
    made = operator.request("POST", "/pipelines/orders/snapshots", {"tables": ["public.orders"]})
    assert (made["state"], made["id"]) == ("waiting", 1)
    for verb, state in (("pause", "paused"), ("resume", "waiting"), ("cancel", "cancelled")):
        assert operator.request("POST", f"/pipelines/orders/snapshots/{verb}")["state"] == state
    [found] = operator.request("GET", "/pipelines/orders/snapshots")
    assert found["state"] == "cancelled"
    with pytest.raises(AccessRefused, match="SQL that runs at the source"):
        operator.request("POST", "/pipelines/orders/snapshots", {"tables": ["public.orders"], "where": "true"})
    asked = [each["action"] for each in admin.request("GET", "/audit")]
    assert asked[:4] == ["cancel snapshot", "resume snapshot", "pause snapshot", "start snapshot"]


def test_a_change_that_is_rolled_back_leaves_no_snapshot_to_be_made(server: Harness) -> None:
    client = server.client()
    client.create(copied(snapshot={"mode": "never"}))
    broken = {"dsn": "postgresql://cdc@127.0.0.1:1/drought", "snapshot": {"mode": "always"}}
    with pytest.raises(LifecycleError, match="cannot start"):
        client.patch("orders", {"spec": {"source": {"config": broken}}})
    assert [each["state"] for each in client.request("GET", "/pipelines/orders/snapshots")] == ["cancelled"]
    assert client.pipeline("orders").status == "running"


def test_a_replay_and_a_comparison_want_a_sink_that_can(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"), start=False)
    with pytest.raises(ConfigError, match="nothing was delivered yet"):
        client.request("POST", "/pipelines/orders/replay", {"from": "0", "dry_run": True})
    with pytest.raises(ConfigError, match="none"):
        client.request("POST", "/pipelines/orders/replay", {"from": "0", "sink": "none"})
    with pytest.raises(ConfigError):
        client.request("POST", "/pipelines/orders/verify", {})


def test_a_comparison_counts_as_the_command_does() -> None:
    faults = (RowFault.MISSING, RowFault.EXTRA, RowFault.EXTRA)
    wrong = tuple(KeyVerdict((str(number),), fault) for number, fault in enumerate(faults))
    shown = VerifiedTable.of(TableVerdict("public.orders", 9, wrong), limit=1)
    assert (shown.wrong, shown.missing, shown.extra, shown.different, len(shown.keys)) == (3, 1, 2, 0, 1)
    unknown = VerifiedTable.of(TableVerdict("public.orders", error="it has no key"), limit=1)
    assert (unknown.wrong, unknown.missing, unknown.extra, unknown.different) == (None, None, None, None)


def test_the_log_level_is_changed_while_the_server_runs(server: Harness) -> None:
    client = server.client()
    assert client.request("PUT", "/log-level", {"level": "DEBUG"}) == {"level": "DEBUG"}
    assert events.LOGGER.level == logging.DEBUG
    assert server.client(Role.VIEWER).request("GET", "/log-level") == {"level": "DEBUG"}
    with pytest.raises(AccessRefused):
        server.client(Role.OPERATOR).request("PUT", "/log-level", {"level": "INFO"})
