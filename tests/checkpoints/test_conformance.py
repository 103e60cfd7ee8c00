"""Every checkpoint store, built in or added, keeps the same promises."""

from __future__ import annotations

import contextlib
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemill import registry
from tidemill.contracts import CheckpointStore
from tidemill.errors import CheckpointConflict
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.seaweedfs import SeaweedFS
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position

Opener = Callable[[], CheckpointStore]

SERVED = {"clickhouse", "postgres", "s3"}  # they need a server; its fixture gives their settings

FORGETFUL = {"memory": "it dies with its process by design"}


def at(offset: int) -> Checkpoint:
    return Checkpoint(offset, Position(f"0/{offset:X}"))


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[Callable[[], dict[str, Any]]]:
    with ClickHouse() as server:
        yield lambda: {"url": server.url, "database": f"test_{uuid.uuid4().hex[:8]}"}


@pytest.fixture
def postgres(postgres18: Postgres) -> Callable[[], dict[str, Any]]:
    return lambda: {"dsn": postgres18.dsn(), "table": f"checkpoints_{uuid.uuid4().hex[:8]}"}


@pytest.fixture(scope="module")
def s3() -> Iterator[Callable[[], dict[str, Any]]]:
    with SeaweedFS() as server:
        bucket = server.bucket("checkpoints")
        yield lambda: {
            "bucket": bucket, "prefix": uuid.uuid4().hex[:8], "endpoint": server.endpoint,
            "access_key_id": server.access_key, "secret_access_key": server.secret_key,
        }  # fmt: skip


@pytest.fixture(params=registry.names("checkpoints"))
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    kind = registry.load("checkpoints", request.param)
    settings = request.getfixturevalue(request.param)() if request.param in SERVED else {}
    opened: list[CheckpointStore] = []

    def open_store() -> CheckpointStore:
        if request.param in FORGETFUL and opened:
            return opened[0]
        opened.append(kind(kind.Config(**settings), tmp_path))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def test_a_pipeline_that_never_saved_has_no_checkpoint(opener: Opener) -> None:
    store = opener()
    assert store.load("orders") is None
    assert store.history("orders") == []


def test_what_was_saved_is_loaded_again_numbered_and_dated(opener: Opener) -> None:
    store = opener()
    saved = store.save("orders", replace(at(7), note="first"), expect=0)
    assert (saved.offset, saved.position, saved.version, saved.note) == (7, "0/7", 1, "first")
    assert saved.saved_at
    assert store.load("orders") == saved
    assert store.history("orders")[0] == saved


def test_another_instance_sees_what_was_saved(opener: Opener) -> None:
    saved = opener().save("orders", at(7), expect=0)
    assert opener().load("orders") == saved


def test_a_stale_version_is_refused_and_changes_nothing(opener: Opener) -> None:
    store = opener()
    first = store.save("orders", at(7), expect=0)
    for stale in (0, 2):
        with pytest.raises(CheckpointConflict):
            store.save("orders", at(9), expect=stale)
    assert store.load("orders") == first


def test_it_never_moves_backwards_unless_an_operator_forces_it(opener: Opener) -> None:
    store = opener()
    store.save("orders", at(7), expect=0)
    with pytest.raises(CheckpointConflict, match="backwards"):
        store.save("orders", at(3), expect=1)
    forced = store.save("orders", at(3), expect=1, force=True)
    assert (forced.offset, forced.version) == (3, 2)


def test_force_does_not_overrule_the_comparison(opener: Opener) -> None:
    store = opener()
    store.save("orders", at(7), expect=0)
    with pytest.raises(CheckpointConflict):
        store.save("orders", at(9), expect=0, force=True)


def test_a_save_whose_answer_was_lost_may_be_repeated(opener: Opener) -> None:
    store = opener()
    store.save("orders", replace(at(3), writer="a"), expect=0)
    unanswered = store.save("orders", replace(at(7), writer="a"), expect=1)
    again = store.save("orders", replace(at(7), writer="a"), expect=1)
    assert (again, store.load("orders")) == (unanswered, unanswered)
    # By then it may have more to say than the first time.
    later = store.save("orders", replace(at(9), writer="a"), expect=1)
    assert (later.offset, later.version) == (9, 3)
    assert store.load("orders") == later


def test_what_somebody_else_saved_meanwhile_is_a_conflict_also_with_the_same_content(opener: Opener) -> None:
    store = opener()
    store.save("orders", replace(at(3), writer="a"), expect=0)
    saved = store.save("orders", replace(at(7), writer="b"), expect=1)
    for writer in ("a", ""):
        with pytest.raises(CheckpointConflict):
            store.save("orders", replace(at(7), writer=writer), expect=1)
    assert store.load("orders") == saved


def test_where_the_transaction_of_a_checkpoint_begins_is_kept(opener: Opener) -> None:
    store = opener()
    assert store.save("orders", at(3), expect=0).begins == 3
    store.save("orders", replace(at(7), base=4), expect=1)
    found = opener().load("orders")
    assert found is not None
    assert (found.offset, found.begins) == (7, 4)


def test_a_position_that_is_no_longer_the_sinks_own_says_so(opener: Opener) -> None:
    store = opener()
    assert not store.save("orders:a", at(3), expect=0).joined
    joined = store.save("orders:a", replace(at(3), joined=True, writer="w"), expect=1)
    assert joined.joined
    assert opener().load("orders:a") == joined
    left = store.save("orders:a", replace(at(3), writer="w"), expect=1)
    assert (left.version, left.joined) == (3, False), "it is another save, not the same whose answer was lost"
    assert opener().load("orders:a") == left


def test_an_idle_pipeline_may_save_a_later_position_at_the_same_offset(opener: Opener) -> None:
    store = opener()
    store.save("orders", at(7), expect=0)
    saved = store.save("orders", Checkpoint(7, Position("0/FF")), expect=1)
    assert store.load("orders") == saved


def test_pipelines_do_not_share_checkpoints_whatever_their_names(opener: Opener) -> None:
    store = opener()
    names = ["orders", "orders/eu", "../orders", "bestellungen-ü", "orders%2Feu", "or ders"]
    for number, name in enumerate(names):
        store.save(name, at(number), expect=0)
    loaded = [store.load(name) for name in names]
    assert [c.offset for c in loaded if c] == list(range(len(names)))


def test_of_many_writers_with_the_same_version_exactly_one_wins(opener: Opener) -> None:
    writers, rounds = 4, 8
    stores = [opener() for _ in range(writers)]
    won: list[int] = []
    for number in range(rounds):
        start = threading.Barrier(writers)

        def attempt(store: CheckpointStore, number: int = number, start: threading.Barrier = start) -> None:
            start.wait()
            with contextlib.suppress(CheckpointConflict):
                won.append(store.save("orders", at(number), expect=number).version)

        threads = [threading.Thread(target=attempt, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert won == list(range(1, rounds + 1))


def test_history_is_newest_first_and_limited(opener: Opener) -> None:
    store = opener()
    for number in range(5):
        store.save("orders", at(number), expect=number)
    versions = [c.version for c in store.history("orders", 3)]
    assert versions in ([5, 4, 3], [5])


def test_its_conflicts_survive_a_process_border(opener: Opener) -> None:
    store = opener()
    with pytest.raises(CheckpointConflict) as caught:
        store.save("orders", at(1), expect=5)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
