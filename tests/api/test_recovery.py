"""A pipeline goes on after a lost position by one call of the API, on record."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.api.conftest import Harness, document, raw
from tests.api.test_grpc import Rpc, reach
from tidemill.api.proto import operations_pb2 as operations
from tidemill.errors import AccessRefused, ConfigError, LifecycleError, ServerError, SourceError
from tidemill.log.reader import LogReader
from tidemill.service.lease.leases import LeaseKeeper
from tidemill.service.server.tokens import Role
from tidemill.state import open_leases


def test_a_gap_is_accepted_by_an_operator_and_stands_in_the_audit_trail(server: Harness) -> None:
    server.client().create(document("orders"), start=False)
    operator = server.client(Role.OPERATOR, "bob")
    done = operator.recover("orders", "accept_gap", reason="the slot was dropped")
    assert (done["to"], done["snapshot"], done["waiting"]) == ("0/99", None, {"bucket-orders": 0})
    assert done["consequence"] == "changes of orders after the beginning and before now are never captured"
    entry = server.store.audit_trail(1)[0]
    assert (entry.action, entry.subject, entry.detail) == ("recover, accept_gap", "orders", done["consequence"])
    assert entry.actor.startswith("bob (token ")
    assert LogReader(server.control.pipeline("orders").log_uri).tail().position == "0/99"
    assert operator.start("orders").status == "running"


def test_a_repeated_request_gets_its_first_answer_and_loses_nothing_more(server: Harness) -> None:
    server.client().create(document("orders"), start=False)
    key = {"Idempotency-Key": "once"}
    first = raw(server, "POST", "/pipelines/orders/recover", {"mode": "accept_gap"}, key)
    again = raw(server, "POST", "/pipelines/orders/recover", {"mode": "accept_gap"}, key)
    assert (first[0], again[:2]) == (200, first[:2])
    assert [each.action for each in server.store.audit_trail(10)].count("recover, accept_gap") == 1


def test_a_pipeline_that_runs_or_a_viewer_recovers_nothing(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"))
    for prepare in (lambda: None, lambda: client.pause("orders")):
        prepare()
        with pytest.raises(LifecycleError, match="only while it does not run"):
            client.recover("orders", "accept_gap")
    client.stop("orders")
    with pytest.raises(AccessRefused):
        server.client(Role.VIEWER).recover("orders", "accept_gap")
    with pytest.raises(ServerError, match="snapshot"):
        client.recover("orders", "jump")
    assert not [each for each in server.store.audit_trail(20) if each.action.startswith("recover")]


def test_what_the_source_cannot_do_is_said_before_anything_changes(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"), start=False)
    with pytest.raises(ConfigError, match="cannot copy its tables"):
        client.recover("orders", "snapshot")
    dry = document("dry")
    dry["spec"]["source"]["config"]["dsn"] = "pond://drought"
    client.create(dry, start=False)
    with pytest.raises(SourceError, match="dry"):
        client.recover("dry", "accept_gap")
    assert raw(server, "POST", "/pipelines/dry/recover", {"mode": "accept_gap"})[0] == 502


def test_no_other_server_starts_the_pipeline_meanwhile(
    serve: object, tmp_path: Path, stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is held while capture begins anew, and free after it."""
    state = str(tmp_path / "state" / "state.sqlite")
    keeper = LeaseKeeper(open_leases(state, seconds=5), seconds=10)
    keeper.begin()
    server = Harness(tmp_path, leases=keeper)
    seen: list[str] = []
    try:
        server.client().create(document("orders"), start=False)
        from tests.support.components import Pond

        renew = Pond.renew

        def look(self: Pond, schemas: object) -> object:
            with closing(open_leases(state, seconds=5)) as leases:
                found = leases.find("orders")
            seen.append(found.holder.id if found is not None and found.holder is not None else "")
            return renew(self, schemas)  # type: ignore[arg-type]

        monkeypatch.setattr(Pond, "renew", look)
        server.client().recover("orders", "accept_gap")
        with closing(open_leases(state, seconds=5)) as leases:
            after = leases.find("orders")
        assert seen == [keeper.holder]
        assert after is not None
        assert after.holder is None
    finally:
        server.close()
        keeper.close()


def test_the_same_over_grpc(server: Harness) -> None:
    server.client().create(document("orders"), start=False)
    with reach(server) as channel:
        client = Rpc(channel, server.admin)
        assert client.refusal("Control.Recover", operations.RecoverRequest(pipeline="orders"))[1]["where"] == "mode"
        request = operations.RecoverRequest(pipeline="orders", mode=operations.ACCEPT_GAP, reason="dropped")
        report = client.call("Control.Recover", request)
    assert (report.pipeline, report.position_after, report.snapshot) == ("orders", "0/99", 0)
    assert dict(report.waiting) == {"bucket-orders": 0}
