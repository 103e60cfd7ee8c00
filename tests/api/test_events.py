"""Streams of events that were cut go on where they were, and show nobody what was not theirs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.api.conftest import Harness, document
from tests.api.tenants import of_tenant, scoped
from tidemill.api import event_journal
from tidemill.api.client import ServerClient, ServerEvent
from tidemill.api.event_journal import EventJournal, JournalEvent
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.server.tokens import Role


def until_state(stream: Iterator[ServerEvent], state: str) -> list[ServerEvent]:
    """What comes up to the status that has the state."""
    seen = [next(stream)]
    while seen[-1].data.get("state") != state:
        seen.append(next(stream))
    return seen


def cut(stream: Iterator[ServerEvent]) -> None:
    stream.close()  # type: ignore[attr-defined]


def test_a_stream_that_was_cut_goes_on_with_what_it_missed(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"))
    whole, stream = client.events("orders"), client.events("orders")
    first, begun = next(stream), next(whole)
    assert first.id == begun.id
    cut(stream)
    for change in (client.pause, client.resume, client.pause):
        change("orders")
    went_on = client.events("orders", after=first.id)
    seen = [*until_state(went_on, "paused"), *until_state(went_on, "running"), *until_state(went_on, "paused")]
    expected = [*until_state(whole, "paused"), *until_state(whole, "running"), *until_state(whole, "paused")]
    assert seen == expected, "the same events, with the same ids, once each"
    client.stop("orders")
    assert until_state(went_on, "stopped") == until_state(whole, "stopped"), "what is new follows what was missed"


def test_a_stream_that_goes_on_where_nothing_happened_waits_for_what_is_new(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"))
    stream = client.events()
    last = until_state(stream, "running")[-1]
    client.pause("orders")
    last = until_state(stream, "paused")[-1]
    cut(stream)
    went_on = client.events(after=last.id)
    client.resume("orders")
    seen = until_state(went_on, "running")
    assert "dropped" not in {each.kind for each in seen}
    assert len({each.id for each in (last, *seen)}) == len(seen) + 1


@pytest.mark.parametrize("after", ["0badcafe-1", "nonsense", "-", "1", f"{2**70}", "é".encode().decode("latin-1")])
def test_an_id_that_the_server_does_not_know_is_told_as_dropped_and_begins_anew(server: Harness, after: str) -> None:
    client = server.client()
    client.create(document("orders"))
    stream = client.events("orders", after=after)
    dropped, status = next(stream), next(stream)
    assert (dropped.kind, dropped.data, dropped.id) == ("dropped", {"events": None}, "")
    assert (status.kind, status.data["name"]) == ("status", "orders")


def test_what_is_no_longer_kept_is_told_as_dropped(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    client = server.client()
    client.create(document("orders"))
    stream = client.events("orders")
    first = next(stream)
    cut(stream)
    monkeypatch.setattr(event_journal, "MAX_BYTES", 1)
    client.pause("orders")
    until_state(client.events("orders"), "paused")
    assert next(client.events("orders", after=first.id)).kind == "dropped"


def test_another_tenants_past_under_a_name_is_not_shown(server: Harness) -> None:
    """Neither to a stream that goes on from then, nor to one that was open when the name changed hands."""
    everything, hotel = server.client(), scoped(server, Role.ADMIN, tenant="hotel")
    everything.create(of_tenant("desk", "hotel"))
    everything.create(of_tenant("orders", "hotel"))
    before, opened = hotel.events("desk"), hotel.events("orders")
    last = next(before)
    next(opened)
    everything.delete("orders")
    everything.create(of_tenant("orders", "shop"))
    everything.pause("orders")
    hotel.pause("desk")
    hotel.resume("desk")
    until_state(before, "paused")
    seen = until_state(hotel.events(after=last.id), "paused")
    assert "shop" not in str(seen)
    shown = scoped(server, Role.VIEWER, tenant="shop").events(after=last.id)
    everything.resume("orders")
    assert {each.data["name"] for each in until_state(shown, "running")} == {"orders"}
    assert not any(each.data["state"] == "paused" for each in _now(opened)), "it is the shop's by now"


def _now(stream: Iterator[ServerEvent]) -> list[ServerEvent]:
    """What has come already, and within two seconds."""
    seen: list[ServerEvent] = []

    def read() -> None:
        for each in stream:
            seen.append(each)  # noqa: PERF402  seen while it grows

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(2.0)
    return list(seen)


def test_every_listener_has_every_event_once_whenever_it_begins(server: Harness) -> None:
    """Of what was missed and what comes, nothing is lost or doubled in between."""
    journal = EventJournal(server.control)
    counted = 400
    first = journal.follow(lambda event: None, None)

    def tell() -> None:
        for number in range(counted):
            status = PipelineStatus("orders", State.RUNNING, events=number)
            server.control.runtime._subscribers.tell("on_status", status)
            time.sleep(0.0001)

    teller = threading.Thread(target=tell)
    teller.start()
    heard: list[list[int]] = []
    for _ in range(20):
        time.sleep(0.002)
        numbers: list[int] = []

        def hear(event: JournalEvent, numbers: list[int] = numbers) -> None:
            numbers.append(event.number)

        following = journal.follow(hear, journal.id_of(first.last))
        assert following.missed is not None
        numbers[:0] = [each.number for each in following.missed]
        heard.append(numbers)
    teller.join()
    server.control.runtime._subscribers.close()
    assert all(numbers == list(range(first.last + 1, first.last + counted + 1)) for numbers in heard)


def test_a_client_sees_the_lines_that_the_standard_has(server: Harness) -> None:
    client: ServerClient = server.client()
    client.create(document("orders"))
    connection, answer = client._send("GET", "/pipelines/orders/events")
    lines = [answer.readline().decode().rstrip("\n") for _ in range(5)]
    connection.close()
    assert lines[:2] == ["retry: 2000", ""]
    assert lines[2].startswith("id: ")
    assert lines[3:] == ["event: status", lines[4]]
    assert lines[4].startswith("data: {")
