"""What is particular to checkpoints in S3: conditions of writes, lost answers, and how much is kept."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import obstore
import pytest

from tidemill.checkpoints.s3 import S3Checkpoints, S3CheckpointsConfig
from tidemill.errors import CheckpointConflict, CheckpointError, ConfigError, is_retryable
from tidemill.lab.servers.seaweedfs import SeaweedFS
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    with SeaweedFS() as made:
        made.bucket("positions")
        yield made


Open = Callable[..., S3Checkpoints]


@pytest.fixture
def opened(server: SeaweedFS) -> Iterator[Open]:
    """Each call is another process, over the same prefix."""
    prefix, made = uuid.uuid4().hex[:8], list[S3Checkpoints]()

    def another(**settings: Any) -> S3Checkpoints:
        given = {
            "bucket": "positions", "prefix": prefix, "endpoint": server.endpoint, "access_key_id": server.access_key,
            "secret_access_key": server.secret_key, **settings,
        }  # fmt: skip
        made.append(S3Checkpoints(S3CheckpointsConfig.model_validate(given)))
        return made[-1]

    yield another
    for each in made:
        each.close()


def at(offset: int, writer: str = "") -> Checkpoint:
    return Checkpoint(offset, Position(f"0/{offset:X}"), writer=writer)


def test_as_many_as_configured_are_kept_in_one_object(opened: Open, server: SeaweedFS) -> None:
    store = opened(keep=3)
    for number in range(6):
        store.save("orders", at(number), expect=number)
    assert [c.version for c in store.history("orders")] == [6, 5, 4]
    listed: Any = obstore.list(server.store("positions"), f"{store.config.prefix}/").collect()
    assert [each["path"] for each in listed] == [f"{store.config.prefix}/orders.json"], "nor what was tried out"


def test_a_save_after_a_save_is_one_request(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    store.save("orders", at(1), expect=0)
    monkeypatch.setattr(obstore, "get", None)
    assert store.save("orders", at(2), expect=1).version == 2


def test_a_process_that_saved_before_sees_what_another_saved_since(opened: Open) -> None:
    first, second = opened(), opened()
    first.save("orders", at(1), expect=0)
    second.save("orders", at(2), expect=1)
    with pytest.raises(CheckpointConflict, match="at version 2, not at 1"):
        first.save("orders", at(3), expect=1)
    assert first.save("orders", at(3), expect=2).version == 3


def test_a_save_whose_answer_was_lost_inside_the_client_is_no_conflict(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats a request by itself, and is refused then: by what it wrote the first time."""
    store = opened()
    store.save("orders", at(1), expect=0)
    put = obstore.put

    def put_twice(*given: Any, **settings: Any) -> Any:
        put(*given, **settings)
        return put(*given, **settings)

    monkeypatch.setattr(obstore, "put", put_twice)
    saved = store.save("orders", at(2), expect=1)
    assert (saved.offset, saved.version) == (2, 2)
    assert opened().load("orders") == saved


def test_a_store_that_ignores_conditions_is_refused_before_anything_is_saved(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *given, mode=None, **settings: put(*given, **settings))
    store = opened()
    with pytest.raises(ConfigError, match="ignores conditions") as refused:
        store.save("orders", at(1), expect=0)
    assert not is_retryable(refused.value)
    assert store.load("orders") is None


def test_an_object_that_is_something_else_is_named(opened: Open, server: SeaweedFS) -> None:
    store = opened()
    name = f"{store.config.prefix}/orders.json"
    obstore.put(server.store("positions"), name, b'{"rows": 7}')
    with pytest.raises(CheckpointError, match="does not hold checkpoints") as refused:
        store.load("orders")
    assert name in refused.value.where


def test_a_wrong_key_is_said_and_its_secret_is_not(opened: Open) -> None:
    store = opened(secret_access_key="guess-me")
    with pytest.raises(CheckpointError, match="S3 refused") as refused:
        store.load("orders")
    assert "guess-me" not in f"{refused.value} {refused.value.__cause__}"


def test_a_server_that_is_away_is_worth_a_retry() -> None:
    with SeaweedFS() as server:
        server.bucket("positions")
        config = S3CheckpointsConfig.model_validate({
            "bucket": "positions", "endpoint": server.endpoint, "access_key_id": server.access_key,
            "secret_access_key": server.secret_key, "connect_timeout_seconds": 1, "timeout_seconds": 2,
        })  # fmt: skip
        with closing(S3Checkpoints(config)) as store:
            saved = store.save("orders", at(1, "w"), expect=0)
            server.kill()
            with pytest.raises(CheckpointError) as refused:
                store.save("orders", at(2, "w"), expect=1)
            assert is_retryable(refused.value)
            server.start()
            assert store.load("orders") == saved
            assert store.save("orders", replace(at(2, "w")), expect=1).version == 2
