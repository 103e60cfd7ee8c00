from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tidemill.stream import pins

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
    tmp_path: Path, case: tuple[int, list[int], list[int], int, bool]
) -> None:
    begin, planned, ended, checkpoint, goes_on = case
    write_spark_dir(tmp_path, begin, planned, ended)
    query, where = pins.settle(tmp_path, checkpoint)
    assert query.exists() is goes_on
    assert where == (begin if goes_on else checkpoint)


def test_a_lost_directory_begins_at_the_checkpoint_and_stays_pinned_there(tmp_path: Path) -> None:
    assert pins.settle(tmp_path / "spark", 42)[1] == 42
    write_spark_dir(tmp_path / "spark", 42, [60], [])
    assert pins.settle(tmp_path / "spark", 60)[1] == 42


@pytest.mark.parametrize("content", ["", "v1\n", "v1\n{}\n{torn", "v9\n{}\n[]"])
def test_a_torn_offset_file_clears_the_directory(tmp_path: Path, content: str) -> None:
    write_spark_dir(tmp_path, 10, [20], [])
    (tmp_path / "query" / "offsets" / "0").write_text(content)
    query, where = pins.settle(tmp_path, 10)
    assert (query.exists(), where) == (False, 10)


def write_spark_dir(directory: Path, begin: int, planned: list[int], ended: list[int]) -> None:
    for name in ("offsets", "commits"):
        (directory / "query" / name).mkdir(parents=True)
    (directory / "begin.json").write_bytes(orjson.dumps({"offset": begin}))
    for number, end in enumerate(planned):
        (directory / "query" / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"offset": {end}, "lanes": 1}}')
    for number in ended:
        (directory / "query" / "commits" / str(number)).write_text("v1\n{}")
