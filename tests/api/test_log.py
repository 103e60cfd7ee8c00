"""Captured events over the API: the last ones, and those that come, with filters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import Harness
from tests.api.tenants import of_tenant, scoped
from tests.support.blocks import make_change, make_table
from tidemill.api.client import ServerEvent
from tidemill.errors import AccessRefused, TidemillError
from tidemill.log import LogConfig, LogWriter
from tidemill.service.server.tokens import Role

ORDERS, ITEMS = make_table("orders"), make_table("items")


@pytest.fixture
def writer(server: Harness) -> Iterator[LogWriter]:
    """Into the log of the pipeline `orders`, as its capture would."""
    server.client().create(of_tenant("orders", "shop"))
    made = LogWriter.open(server.control.pipeline("orders").log_uri, LogConfig.model_validate({}))
    yield made
    made.close()


def take(stream: Iterator[ServerEvent], count: int) -> list[tuple[str, str]]:
    found = [next(stream) for _ in range(count)]
    assert {each.kind for each in found} == {"change"}
    return [(each.id, each.data["table"]) for each in found]


def test_the_last_events_are_those_that_the_filters_leave(server: Harness, writer: LogWriter) -> None:
    client = server.client()
    writer.append(make_change(2, tables=(ITEMS,)))
    writer.append(make_change(30, tables=(ORDERS,), number=2))

    def offsets(**query: str) -> list[int]:
        found = client.request("GET", "/pipelines/orders/log", query=[*query.items()])
        return [each["offset"] for each in found]

    assert offsets(limit="3") == [29, 30, 31]
    assert offsets(table="*.items", limit="3") == [0, 1], "also if many others came since"
    assert offsets(op="delete") == []
    assert offsets(op="insert", limit="1") == [31]
    assert offsets(to="5", limit="2") == [0, 1]
    assert offsets(since="2001-01-01T00:00:00Z", limit="2") == [0, 1]
    assert offsets(since="2999-01-01T00:00:00Z") == []
    for wrong in ({"op": "upsert"}, {"since": "yesterday"}):
        with pytest.raises(TidemillError):
            offsets(**wrong)


def test_what_is_captured_is_followed_and_goes_on_after_a_cut(server: Harness, writer: LogWriter) -> None:
    client = server.client(Role.OPERATOR)
    writer.append(make_change(4, tables=(ORDERS,)))
    stream = client.changes("orders", after="1")
    assert take(stream, 2) == [("2", "orders"), ("3", "orders")]
    only = client.changes("orders", table="*.items", after="0")
    writer.append(make_change(3, tables=(ITEMS,), number=2))
    assert take(stream, 3) == take(only, 3) == [("4", "items"), ("5", "items"), ("6", "items")]
    stream.close()  # type: ignore[attr-defined]
    writer.append(make_change(2, tables=(ORDERS,), number=3))
    assert take(client.changes("orders", after="6"), 2) == [("7", "orders"), ("8", "orders")]
    with pytest.raises(AccessRefused):
        next(server.client(Role.VIEWER).changes("orders"))


def test_a_followed_log_ends_when_the_name_is_another_tenants(server: Harness, writer: LogWriter) -> None:
    everything = server.client()
    writer.append(make_change(2, tables=(ORDERS,)))
    stream = scoped(server, Role.OPERATOR, tenant="shop").changes("orders", after="0")
    assert take(stream, 1) == [("1", "orders")]
    everything.delete("orders")
    everything.create(of_tenant("orders", "hotel"))
    writer.append(make_change(5, tables=(ITEMS,), number=2))
    assert "items" not in {each.data["table"] for each in stream}, "it ends by itself"
