"""What servers and workers say to each other, on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tidemill.contracts.installation import PublishedStatus, StoredRequest
from tidemill.state import open_installation
from tidemill.state.installation import InstallationStore

STATUS = PublishedStatus("orders", 2, "running", '{"events": 1}', "2026-01-01T00:00:00Z")
REQUEST = StoredRequest("r1", "orders", "drain", '{"seconds": 5}', "ann", "why", "2026-01-02T00:00:00Z")


@pytest.fixture
def stores(uri: str) -> Iterator[tuple[InstallationStore, InstallationStore]]:
    """As two processes have them."""
    both = open_installation(uri), open_installation(uri)
    yield both
    for each in both:
        each.close()


def test_a_status_is_that_of_the_last_holder_of_the_lease(stores: tuple[InstallationStore, InstallationStore]) -> None:
    one, other = stores
    assert (one.statuses(), one.status("orders")) == ({}, None)
    one.publish(STATUS)
    later = replace(STATUS, state="paused", document="{}")
    one.publish(later)
    assert other.statuses() == {"orders": later}
    taken_over = replace(STATUS, epoch=3)
    other.publish(taken_over)
    one.publish(replace(later, state="failed"))
    assert one.status("orders") == taken_over, "who lost the lease changes nothing"
    other.forget_published("orders")
    assert one.statuses() == {}


def test_a_request_is_taken_once_and_answered(stores: tuple[InstallationStore, InstallationStore]) -> None:
    asks, does = stores
    asks.add_request(replace(REQUEST, id="r0", asked_at="2026-01-01T00:00:00Z"), forget_before="2026-01-01")
    asks.add_request(REQUEST, forget_before="2026-01-02")
    assert does.open_requests() == [REQUEST], "nobody waits for one that is so old"
    assert [does.take_request(REQUEST, "p1"), asks.take_request(REQUEST, "p2")] == [True, False]
    assert asks.open_requests() == []
    does.answer_request(REQUEST, "{}")
    assert asks.request("r1") == replace(REQUEST, taken_by="p1", answer="{}")
    asks.remove_request(REQUEST)
    assert does.request("r1") is None
    assert not does.take_request(REQUEST, "p1"), "it was taken back"
