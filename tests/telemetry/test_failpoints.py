"""Failpoints, in processes of their own: they end there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_PASSES = """
from tidemill.telemetry.failpoints import failpoint
for name in ("first", "second", "third", "first", "second"):
    failpoint(name)
"""


def _pass_them(**environment: str) -> int:
    return subprocess.run([sys.executable, "-c", _PASSES], env=os.environ | environment, check=False).returncode


def test_each_of_several_failpoints_ends_one_process_once(tmp_path: Path) -> None:
    plan = {"TIDEMILL_CRASH_AT": "second:2,third", "TIDEMILL_CRASH_ONCE": str(tmp_path / "crashed")}
    assert _pass_them(**plan) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["crashed-third"]
    assert _pass_them(**plan) == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crashed-second", "crashed-third"]
    assert _pass_them(**plan) == 0


def test_a_failpoint_that_nobody_asked_for_is_passed() -> None:
    assert _pass_them(TIDEMILL_CRASH_AT="") == 0
    assert _pass_them(TIDEMILL_CRASH_AT="fourth") == 0
    assert _pass_them(TIDEMILL_CRASH_AT="second:3") == 0


def test_a_process_rests_at_a_failpoint_until_it_is_woken(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PASSES], env=os.environ | {"TIDEMILL_FREEZE_AT": f"third={tmp_path / 'rest'}"}
    )
    assert process.wait(60) == 0, "there is no file"
    (tmp_path / "rest").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", _PASSES], env=os.environ | {"TIDEMILL_FREEZE_AT": f"third={tmp_path / 'rest'}"}
    )
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    assert [path.name for path in tmp_path.iterdir()] == ["rest-frozen"]
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
