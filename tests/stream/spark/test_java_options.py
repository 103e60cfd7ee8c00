"""What the driver's Java is started with."""

from __future__ import annotations

import pytest

from tidemill.stream.spark.settings import java_options

ASKED = "spark.driver.extraJavaOptions"


def test_the_heap_of_a_java_that_only_plans_begins_small() -> None:
    assert "-XX:+UseSerialGC -Xms64m" in java_options({})


@pytest.mark.parametrize(
    "asked", [{"spark.driver.memory": "8g"}, {ASKED: "-XX:+UseG1GC"}, {ASKED: "-Da=b -XX:+UseZGC"}]
)
def test_who_asks_for_memory_or_a_collector_gets_no_other_of_ours(asked: dict[str, str]) -> None:
    options = java_options(asked)
    assert "UseSerialGC" not in options
    assert "-Xms" not in options
    assert options.endswith(asked.get(ASKED, ""))


def test_what_a_document_asks_for_comes_last_and_wins() -> None:
    options = java_options({ASKED: "-Xms512m -Dx=y"}).split()
    assert options[-2:] == ["-Xms512m", "-Dx=y"]
    assert options.index("-Xms64m") < options.index("-Xms512m")


def test_a_collector_of_the_environment_is_not_met_by_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dx=y -XX:+UseParallelGC")
    assert "UseSerialGC" not in java_options({})
