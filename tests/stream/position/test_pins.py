from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.contracts import StateStore
from tidemill.state import open_store
from tidemill.stream.position import pins


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateStore]:
    store = open_store(str(tmp_path_factory.mktemp("state") / "state.sqlite"))
    yield store
    store.close()


#       begin, planned ends,  ended, checkpoint, goes on?
CASES = {
    "nothing planned yet": (10, [], [], 10, True),
    "nothing planned, checkpoint moved": (10, [], [], 5, False),
    "first batch under way": (10, [20], [], 10, True),
    "first batch delivered, not noted by Spark": (10, [20], [], 20, True),
    "first batch under way, checkpoint moved back": (10, [20], [], 3, False),
    "second batch under way": (10, [20, 35], [0], 20, True),
    "second batch delivered, not noted": (10, [20, 35], [0], 35, True),
    "second batch under way, checkpoint inside it": (10, [20, 35], [0], 27, False),
    "all noted": (10, [20, 35], [0, 1], 35, True),
    "all noted, checkpoint moved back": (10, [20, 35], [0, 1], 20, False),
    "all noted, checkpoint moved forward": (10, [20, 35], [0, 1], 50, False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_spark_goes_on_only_where_the_checkpoint_stands(
    tmp_path: Path, state: StateStore, case: tuple[int, list[int], list[int], int, bool]
) -> None:
    begin, planned, ended, checkpoint, goes_on = case
    write_spark_dir(tmp_path, planned, ended)
    state.save_spark_start("p", begin)
    query, where = pins.settle(tmp_path, checkpoint, state, "p")
    assert query.exists() is goes_on
    assert where == (begin if goes_on else checkpoint)


def test_a_lost_directory_begins_at_the_checkpoint_and_stays_pinned_there(tmp_path: Path, state: StateStore) -> None:
    state.save_spark_start("p", 7)
    assert pins.settle(tmp_path / "spark", 42, state, "p")[1] == 42
    write_spark_dir(tmp_path / "spark", [60], [])
    assert pins.settle(tmp_path / "spark", 60, state, "p")[1] == 42


def test_a_lost_state_store_begins_at_the_checkpoint(tmp_path: Path, state: StateStore) -> None:
    write_spark_dir(tmp_path, [20], [])
    query, where = pins.settle(tmp_path, 10, state, "p")
    assert (query.exists(), where, state.spark_start("p")) == (False, 10, 10)


def test_a_clearing_that_is_cut_short_is_done_again(
    tmp_path: Path, state: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_spark_dir(tmp_path, [20], [])
    state.save_spark_start("p", 10)
    with monkeypatch.context() as patched:
        patched.setattr("tidemill.stream.position.pins.shutil.rmtree", cut_short)
        with pytest.raises(KeyboardInterrupt):
            pins.settle(tmp_path, 3, state, "p")
    query, where = pins.settle(tmp_path, 10, state, "p")  # where the old query would have agreed
    assert (query.exists(), where) == (False, 10)


@pytest.mark.parametrize(("left", "goes_on"), [('{"offset": 10}', True), ("", False), ("{}", False)])
def test_a_start_that_an_older_version_noted_is_imported_and_its_file_goes(
    tmp_path: Path, state: StateStore, left: str, goes_on: bool
) -> None:
    write_spark_dir(tmp_path, [20], [])
    state.save_spark_start("p", 20, "s")  # of a life before the older version ran
    (tmp_path / "begin.json").write_text(left)
    query, where = pins.settle(tmp_path, 10, state, "p", "s")
    assert (query.exists(), where, state.spark_start("p", "s")) == (goes_on, 10, 10)
    assert not (tmp_path / "begin.json").exists()
    assert state.spark_start("p") is None


@pytest.mark.parametrize("content", ["", "v1\n", "v1\n{}\n{torn", "v9\n{}\n[]"])
def test_a_torn_offset_file_clears_the_directory(tmp_path: Path, state: StateStore, content: str) -> None:
    write_spark_dir(tmp_path, [20], [])
    state.save_spark_start("p", 10)
    (tmp_path / "query" / "offsets" / "0").write_text(content)
    query, where = pins.settle(tmp_path, 10, state, "p")
    assert (query.exists(), where) == (False, 10)


def cut_short(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def write_spark_dir(directory: Path, planned: list[int], ended: list[int]) -> None:
    for name in ("offsets", "commits"):
        (directory / "query" / name).mkdir(parents=True)
    for number, end in enumerate(planned):
        (directory / "query" / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"offset": {end}, "lanes": 1}}')
    for number in ended:
        (directory / "query" / "commits" / str(number)).write_text("v1\n{}")
