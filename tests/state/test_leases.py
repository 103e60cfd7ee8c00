"""Leases on both backends: one holder at a time, epochs that only rise, and takeovers that a renewal excludes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tidemill.contracts.lease import LeaseHolder
from tidemill.state import open_leases
from tidemill.state.leases import LeaseStore

LeaseOpener = Callable[[], LeaseStore]


@pytest.fixture
def leases(uri: str) -> Iterator[LeaseOpener]:
    opened: list[LeaseStore] = []

    def another() -> LeaseStore:
        opened.append(open_leases(uri, seconds=5))
        return opened[-1]

    yield another
    for store in opened:
        store.close()


def test_a_lease_is_taken_given_back_and_taken_again_with_a_higher_epoch(leases: LeaseOpener) -> None:
    store = leases()
    assert store.find("orders") is None
    store.renew("a", 10, "here")
    assert store.take("orders", "a", None) == 1
    found = store.find("orders")
    assert found is not None
    assert found.holder == LeaseHolder("a", 1, 10, "here")
    assert store.renew("a", 10, "here") == {"orders": 1}
    store.release("orders", "a", 1)
    free = leases().find("orders")
    assert free is not None
    assert free.holder is None
    assert leases().take("orders", "b", free) == 2


def test_a_lease_whose_holder_renewed_meanwhile_is_not_taken(leases: LeaseOpener) -> None:
    store, other = leases(), leases()
    store.renew("a", 10, "")
    store.take("orders", "a", None)
    seen = other.find("orders")
    store.renew("a", 10, "")
    assert other.take("orders", "b", seen) is None
    assert other.take("orders", "b", other.find("orders")) == 2
    assert store.renew("a", 10, "") == {}, "the old holder finds out with its next renewal"
    store.release("orders", "a", 1)
    found = store.find("orders")
    assert found is not None
    assert found.holder is not None
    assert found.holder.id == "b", "a late release takes nothing away from the new holder"


def test_of_many_that_want_a_lease_one_gets_it(leases: LeaseOpener) -> None:
    stores = [leases() for _ in range(6)]
    for number, store in enumerate(stores):
        store.renew(str(number), 10, "")
    together, epochs = threading.Barrier(len(stores)), list[int | None]()

    def take(number: int) -> None:
        together.wait(30)
        epochs.append(stores[number].take("orders", str(number), None))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(epoch for epoch in epochs if epoch is not None) == [1]
    assert len(epochs) == len(stores)


def test_a_holder_that_leaves_frees_all_it_has(leases: LeaseOpener) -> None:
    store = leases()
    store.renew("a", 10, "")
    for name in ("orders", "users"):
        store.take(name, "a", None)
    store.leave("a")
    assert [(each.pipeline, each.epoch, each.holder) for each in store.leases()] == [
        ("orders", 1, None), ("users", 1, None),
    ]  # fmt: skip
