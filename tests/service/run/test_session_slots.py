"""Starts one after another and at once, in a session of few slots. Streams are scripted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.config.conftest import PIPELINE
from tests.service.scripted_runtime import ScriptedCapture
from tests.support.components import register
from tests.support.scripted import ScriptedStream
from tests.support.session_standin import session_of
from tidemill import config
from tidemill.errors import EnvironmentProblem
from tidemill.service.run import pipeline_run, session_slots
from tidemill.service.run.status import State
from tidemill.service.run.trigger_modes import report_turns
from tidemill.service.runtime import Runtime
from tidemill.stream.spark import class_archive, session

ASKS = "  trigger: {mode: real_time}"


class Few:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def pipeline(self, name: str, more: str = "") -> config.Pipeline:
        document = PIPELINE.replace("name: orders", f"name: {name}").replace("{id: b}", f"{{id: {name}}}")
        path = self._directory / f"{name}.yaml"
        path.write_text(f"{document}  state_dir: {self._directory}/state\n{more}\n")
        (pipeline,) = config.load(path)
        ScriptedStream.outlook[name] = "up"
        return pipeline


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Few:
    register(monkeypatch)
    monkeypatch.setattr(pipeline_run, "StreamLoop", ScriptedStream)
    monkeypatch.setattr(pipeline_run, "CaptureProcess", ScriptedCapture)
    monkeypatch.setattr(ScriptedStream, "outlook", {})
    return Few(tmp_path)


def modes(runtime: Runtime) -> dict[str, str]:
    return {name: runtime._find(name).trigger.mode for name in runtime.names}


def test_of_many_that_ask_for_real_time_those_that_find_slots_start(few: Few, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "create_session", lambda *_, **__: session_of("local[3]"))
    monkeypatch.setattr(session, "is_alive", lambda _: True)
    monkeypatch.setattr(session, "close_session", lambda _: None)
    monkeypatch.setattr(session, "warm_up", lambda *_: None)
    monkeypatch.setattr(class_archive, "begin_archive", lambda _: None)
    with Runtime() as runtime:
        for name in "abc":
            runtime.add(few.pipeline(name, f"{ASKS}\n  spark: {{master: 'local[3]'}}"))
        runtime.start("a")
        runtime.start("b")
        with pytest.raises(EnvironmentProblem, match=r"would hold 3 of Spark's 3 slots"):
            runtime.start("c")
        assert [runtime.status(name).state for name in "abc"] == [State.RUNNING, State.RUNNING, State.CREATED]


@pytest.mark.parametrize("more", ["", ASKS])
def test_two_that_start_at_once_do_not_get_the_same_slot(few: Few, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    chosen, real = threading.Barrier(2), report_turns

    def report(*given: Any, **named: Any) -> None:
        chosen.wait(10)  # both have chosen, and none has begun
        real(*given, **named)

    refused: list[EnvironmentProblem] = []

    def start(name: str) -> None:
        try:
            runtime.start(name)
        except EnvironmentProblem as error:
            refused.append(error)
            chosen.wait(10)

    monkeypatch.setattr(session_slots, "report_turns", report)
    with Runtime(spark=session_of("local[2]")) as runtime:
        for name in "ab":
            runtime.add(few.pipeline(name, more))
        threads = [threading.Thread(target=start, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if more:
            assert len(refused) == 1
        else:
            assert sorted(modes(runtime).values()) == ["micro_batch", "real_time"]
        monkeypatch.setattr(session_slots, "report_turns", real)
        runtime.stop(*runtime.names)
        runtime.start(*runtime.names[:1])
        assert modes(runtime)[runtime.names[0]] == "real_time", "what has ended holds nothing"


def test_a_session_that_starts_tasks_twice_has_no_standing_ones_whichever_document_says_so(few: Few) -> None:
    """The second task of a lane is sent away, and Spark then kills the first: the epoch would end again and again."""
    with Runtime(spark=session_of("local[64]", **{"spark.speculation": "true"})) as runtime:
        runtime.add(few.pipeline("a"))
        runtime.add(few.pipeline("b", ASKS))
        runtime.start("a")
        assert modes(runtime)["a"] == "micro_batch"
        with pytest.raises(EnvironmentProblem, match=r"its session has spark\.speculation"):
            runtime.start("b")
