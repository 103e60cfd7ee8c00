"""Long lists come in pages: following `Link` shows every entry once, also while entries are added or removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.api.conftest import Harness, document, raw
from tests.api.test_schema_changes import seen
from tests.dlq.test_store import dead_letter
from tidemill.config import Pipeline
from tidemill.dlq import DeadLetters
from tidemill.service.server.scope import Scope
from tidemill.service.server.tokens import Role


def pages(server: Harness, path: str, **headers: str) -> Iterator[Any]:
    following: str | None = path
    while following is not None:
        status, page, said = raw(server, "GET", following, headers=headers)
        assert status == 200, page
        yield page
        following = said["link"].partition(">")[0].removeprefix("<") if "link" in said else None


def test_every_dead_letter_is_in_one_page_also_if_the_last_one_shown_is_purged(server: Harness) -> None:
    server.client().create(document("orders", dlq={}))
    pipeline: Pipeline = server.control.pipeline("orders")
    store = DeadLetters(pipeline.dlq_path, pipeline.spec.dlq)
    store.put([dead_letter(offset, sink) for offset in (3, 1, 2) for sink in "ts"])
    found = []
    for page in pages(server, "/pipelines/orders/dead-letters?limit=2"):
        found += [(each["offset"], each["id"]) for each in page["dead_letters"]]
        assert page["count"]
        store.remove([found[-1][1]])
    store.close()
    assert [offset for offset, _ in found] == [1, 1, 2, 2, 3, 3]
    assert len({number for _, number in found}) == 6


def test_dead_letters_of_one_sink_have_pages_of_their_own(server: Harness) -> None:
    server.client().create(document("orders", dlq={}))
    pipeline: Pipeline = server.control.pipeline("orders")
    store = DeadLetters(pipeline.dlq_path, pipeline.spec.dlq)
    store.put([dead_letter(offset, sink) for offset in (1, 2, 3) for sink in "st"])
    store.close()
    found = [
        [each["offset"] for each in page["dead_letters"]]
        for page in pages(server, "/pipelines/orders/dead-letters?limit=2&sink=s")
    ]
    assert found == [[1, 2], [3]]
    for wrong in ("1", "1:", ":1", "a:b", "-1:2", "1:2:3"):
        assert raw(server, "GET", f"/pipelines/orders/dead-letters?after={wrong}")[0] == 422, wrong


def test_the_whole_audit_trail_can_be_read_also_while_it_grows(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"))
    client.create(document("others"))
    for _ in range(3):
        client.pause("orders")
        client.resume("orders")
    whole = [each["number"] for each in client.request("GET", "/audit")]
    found = []
    for page in pages(server, "/audit?limit=3"):
        found += [each["number"] for each in page]
        client.change("others", "restart")
    assert found == whole == list(range(len(whole), 0, -1))


def test_a_token_of_one_pipeline_pages_through_its_own_entries_alone(server: Harness) -> None:
    client = server.client()
    for name in ("orders", "others"):
        client.create(document(name))
    for _ in range(2):
        for name in ("orders", "others"):
            client.change(name, "restart")
    token = server.tokens.create("orders-admin", Role.ADMIN, scope=Scope("", "orders"))[0]
    found = [each for page in pages(server, "/audit?limit=1", Authorization=f"Bearer {token}") for each in page]
    assert [(each["action"], each["subject"]) for each in found] == [
        ("restart", "orders"), ("restart", "orders"), ("create", "orders"),
    ]  # fmt: skip


def test_every_schema_change_is_in_one_page(server: Harness) -> None:
    server.client().create(document("orders"))
    seen(server, "a", "b", "c")
    assert [[each["table"] for each in page] for page in pages(server, "/pipelines/orders/ddl?limit=2")] == [
        ["c", "b"], ["a"],
    ]  # fmt: skip
