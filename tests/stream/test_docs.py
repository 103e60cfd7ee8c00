from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocks import make_block, make_change
from tidemill.log import LogConfig, LogWriter
from tidemill.model.block import Op
from tidemill.model.change import Committed
from tidemill.model.position import Position

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.fixture
def small(spark: Any) -> Iterator[Any]:
    """The session, with as few partitions as so few rows need."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    spark.conf.unset("spark.sql.shuffle.partitions")


def test_the_notebook_of_the_spark_page_runs_as_it_stands(
    small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    writer.append(make_change(10))
    deleted = make_block(4, ops=[Op.UPDATE, Op.UPDATE, Op.DELETE, Op.DELETE], positions="0/900")
    writer.append(Committed((deleted,), 4, ((4, Position("0/900")),)))
    writer.close()
    names: dict[str, Any] = {"spark": small, "log": str(tmp_path / "log")}
    for cell in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(cell, names)
    assert {row["_op"]: row["count"] for row in names["busy"].collect()} == {"insert": 10, "update": 2, "delete": 2}
    assert names["latest"].count() == 8
    assert small.sql("SELECT count(*) AS n FROM inserted").collect()[0]["n"] == 10
    assert "decimal(12,2)" in capsys.readouterr().out
