"""What a long bench waits for ends by itself, and says why."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import psutil
import pytest

from tests.support.terminal import Terminal
from tidemill.errors import EnvironmentProblem
from tidemill.lab import waits
from tidemill.lab.bench import server
from tidemill.lab.waits import Waits, ending_on_signals


def nothing() -> None:
    pass


def never() -> bool:
    return False


def test_a_wait_says_what_is_not_yet_so_and_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_SAY_SECONDS", 0.1)
    said: list[str] = []
    waiting = Waits("tidemill bench server", seconds=0.5, say=said.append)
    with pytest.raises(EnvironmentProblem, match=r"after 0 s it is not yet so that all stream \(3 of 7\)") as stopped:
        waiting.until(never, "all stream", check=nothing, progress=lambda: "3 of 7")
    assert "--limit" in stopped.value.fix
    assert 3 <= len(said) <= 6
    assert "not yet: all stream (3 of 7), " in said[0]
    waiting.until(lambda: True, "nothing is waited for", check=nothing)


def test_a_wait_ends_before_the_memory_of_the_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=300e6, total=24e9))
    waiting = Waits("tidemill bench server", seconds=60, say=lambda text: None)
    with pytest.raises(EnvironmentProblem, match="only 300 MB of the machine's memory are free, before all stream"):
        waiting.until(never, "all stream", check=nothing)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_bench_with_an_error_and_only_there(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(EnvironmentProblem, match=number.name), ending_on_signals("tidemill bench server"):
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_a_bench_that_does_not_come_to_its_end_shows_what_it_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: server.ServerBench) -> None:
        self.measured["alone_rows_per_s"] = 4711
        raise EnvironmentProblem("the bench stopped: of old age", where="tidemill bench server")

    monkeypatch.setattr(server.ServerBench, "run", stop)
    shown = Terminal(capsys)("bench", "server", "--json")
    assert (shown.code, shown.json["alone_rows_per_s"]) == (3, 4711)
    assert shown.json["error"]["what"] == "the bench stopped: of old age"
    told = Terminal(capsys)("bench", "server")
    assert (told.code, "4,711" in told.out, "of old age" in told.err) == (3, True, True)
