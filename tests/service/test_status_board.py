"""What a process says of its pipelines to the others of the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from tidemill.contracts.installation import PublishedStatus
from tidemill.errors import StateError
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.runtime import Runtime
from tidemill.service.server.status_board import StatusBoard
from tidemill.state import open_installation
from tidemill.state.installation import InstallationStore


class LeasedRuntime:
    """Has the lease of every pipeline; `say` is what subscribers hear."""

    def subscribe(self, *, on_status: Any, own: bool) -> None:
        assert own
        self.say = on_status

    def lease_epoch(self, name: str) -> int:
        return 1

    def announce(self, status: PipelineStatus) -> None:
        raise AssertionError("what it runs itself is no news")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[InstallationStore]:
    with closing(open_installation(str(tmp_path / "state.sqlite"))) as opened:
        yield opened


def test_an_older_status_never_replaces_a_newer_one(store: InstallationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that is slow has an older status in hand while a change of state is published: what is published last
    stays, because a paused pipeline says no more."""
    runtime = LeasedRuntime()
    board = StatusBoard(cast("Runtime", runtime), store)
    for name in ("orders", "users"):
        runtime.say(PipelineStatus(name, State.RUNNING))
        runtime.say(PipelineStatus(name, State.RUNNING, events=1))
    paused = PipelineStatus("users", State.PAUSED)
    publish = board._publish

    def be_interrupted(*given: Any) -> None:
        publish(*given)
        monkeypatch.setattr(board, "_publish", publish)
        runtime.say(paused)

    monkeypatch.setattr(board, "_publish", be_interrupted)
    board.look()
    found = store.statuses()
    assert {name: each.state for name, each in found.items()} == {"orders": "running", "users": "paused"}


def test_what_the_store_did_not_take_is_published_with_the_next_look(
    store: InstallationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = LeasedRuntime()
    board = StatusBoard(cast("Runtime", runtime), store)

    def refuse(status: PublishedStatus) -> None:
        raise StateError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "publish", refuse)
        runtime.say(PipelineStatus("orders", State.PAUSED))
        with pytest.raises(StateError):
            board.look()
    board.look()
    assert store.statuses()["orders"].state == "paused"
