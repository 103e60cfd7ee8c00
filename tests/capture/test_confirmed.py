"""The position confirmed to the source: where it is kept, since when it counts, and what older versions left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from tests.capture.standins import StandInLog, StandInSchemas, StandInSource
from tidemill.capture.confirmed import forget_confirmed, import_confirmed, read_confirmed
from tidemill.capture.loop import Capture, Limits
from tidemill.contracts import ConfirmedPosition, StateStore
from tidemill.errors import EnvironmentProblem, StateError
from tidemill.model.position import Offset, Position
from tidemill.state import find_store, open_store


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateStore]:
    store = open_store(str(tmp_path / "state.sqlite"))
    yield store
    store.close()


def test_what_was_told_counts_only_while_the_log_reaches_as_far(tmp_path: Path, state: StateStore) -> None:
    state.confirm("p", Position("0/500"), 500)
    assert read_confirmed(state, "p", tmp_path, 500) == "0/500"
    assert read_confirmed(state, "p", tmp_path, 300) is None


def test_what_an_older_version_left_is_imported_and_its_file_goes(tmp_path: Path, state: StateStore) -> None:
    left(tmp_path, "told.json", "0/500", 500)
    assert read_confirmed(None, "p", tmp_path, 500) == "0/500", "also who only looks finds it"
    assert read_confirmed(state, "p", tmp_path, 300) is None
    import_confirmed(state, "p", tmp_path)
    assert state.confirmed("p") == ConfirmedPosition(Position("0/500"), 500)
    assert not (tmp_path / "told.json").exists()
    import_confirmed(state, "p", tmp_path)
    assert read_confirmed(state, "p", tmp_path, 500) == "0/500"


def test_a_file_that_is_there_again_is_of_an_older_version_that_ran_since_and_wins(
    tmp_path: Path, state: StateStore
) -> None:
    state.confirm("p", Position("0/500"), 500)
    left(tmp_path, "told.json", "0/600", 600)
    assert read_confirmed(state, "p", tmp_path, 600) == "0/600"
    import_confirmed(state, "p", tmp_path)
    assert state.confirmed("p") == ConfirmedPosition(Position("0/600"), 600)
    assert [path.name for path in tmp_path.glob("*.json")] == []


def test_an_import_that_is_cut_short_is_done_again_and_loses_nothing(
    tmp_path: Path, state: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(tmp_path, "told.json", "0/500", 500)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "not allowed")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(StateError, match="cannot be removed"):
            import_confirmed(state, "p", tmp_path)
    import_confirmed(state, "p", tmp_path)
    assert state.confirmed("p") == ConfirmedPosition(Position("0/500"), 500)


def test_a_recovery_forgets_it_wherever_it_is(tmp_path: Path, state: StateStore) -> None:
    state.confirm("p", Position("0/500"), 500)
    left(tmp_path, "told.json", "0/600", 600)
    forget_confirmed(state, "p", tmp_path)
    import_confirmed(state, "p", tmp_path)
    assert read_confirmed(state, "p", tmp_path, 1000) is None


def test_a_file_that_holds_no_position_is_refused_with_what_to_do(tmp_path: Path, state: StateStore) -> None:
    (tmp_path / "told.json").write_text("{}")
    with pytest.raises(EnvironmentProblem, match="does not hold the position") as raised:
        import_confirmed(state, "p", tmp_path)
    assert raised.value.where == str(tmp_path / "told.json")
    assert "remove the file" in raised.value.fix
    assert find_store(str(tmp_path / "state.sqlite")) is None, "nothing was written"


class Confirming(StandInSource):
    """Lets the loop confirm every position that was delivered, and notes what it heard."""

    def __init__(self, stop: threading.Event, last: int) -> None:
        super().__init__(stop, last)
        self.heard: list[Position] = []

    def due(self, delivered: Position | None, *, caught_up: bool) -> Position | None:  # type: ignore[override]
        return delivered

    def acknowledge(self, position: Position) -> None:
        self.heard.append(position)


def test_the_source_hears_of_a_position_only_once_it_is_kept(tmp_path: Path, state: StateStore) -> None:
    """Invariant 2: a crash between the two must not look like somebody else's doing."""
    stop = threading.Event()
    source = Confirming(stop, 3)
    kept: list[tuple[Position, list[Position]]] = []

    def confirm(position: Position, offset: Offset) -> None:
        kept.append((position, list(source.heard)))
        state.confirm("p", position, offset)

    capture(source, stop, confirm)
    assert len(kept) > 1
    assert all(position not in heard for position, heard in kept)
    found = state.confirmed("p")
    assert found is not None
    assert found.position == source.heard[-1]


def test_a_position_that_cannot_be_kept_is_not_confirmed(tmp_path: Path) -> None:
    """A full disk, or a state store that is away: capture connects again, and says nothing to the source."""
    stop = threading.Event()
    source = Confirming(stop, 2)
    refused: list[Position] = []

    def confirm(position: Position, offset: Offset) -> None:
        refused.append(position)
        if len(refused) == 3:
            stop.set()
        raise StateError("the state store cannot be used: database or disk is full")

    capture(source, stop, confirm)
    assert len(refused) == 3, "it is tried again"
    assert source.heard == []


def capture(source: StandInSource, stop: threading.Event, confirm: Any) -> None:
    Capture(
        cast(Any, source), cast(Any, StandInLog(lambda attempt: None)), cast(Any, StandInSchemas()),
        Limits(ahead_bytes=1), stop, on_confirmed=confirm,
    ).run()  # fmt: skip


def left(directory: Path, name: str, position: str, offset: int) -> None:
    (directory / name).write_bytes(orjson.dumps({"position": position, "offset": offset}))
