"""`tidemill demo`, as a newcomer runs it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.seed import choose

pytestmark = pytest.mark.slow  # the command starts a database and Spark
COMMAND = (str(Path(sys.executable).with_name("tidemill")), "demo")


def test_the_demo_delivers_every_change_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = _demo(tmp_path, "--seconds", "4", "--json")
    facts = json.loads(done.stdout)
    assert facts["equal"], facts
    assert facts["events"] == facts["committed"] > 2_000
    assert facts["duplicates"] == facts["differences"] == 0
    assert facts["rolled_back"] > 0
    assert _left_in(tmp_path) == []


def test_the_demo_of_a_sqlite_file_needs_no_server_and_prints_plain_lines_without_a_terminal(tmp_path: Path) -> None:
    done = _demo(tmp_path, "--source", "sqlite", "--seconds", "3", "--keep")
    assert "\x1b" not in done.stdout
    assert "the files equal the database row by row" in done.stdout
    kept = tmp_path / "tidemill-demo"
    assert (kept / "pipeline.yaml").exists()
    ids = [json.loads(line)["event_id"] for file in kept.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(set(ids)) == len(ids) > 2_000
    again = subprocess.run([*COMMAND, "--keep"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert again.returncode == 3
    assert "is there already" in again.stderr


@pytest.mark.parametrize("number", choose("demo", (signal.SIGINT, signal.SIGTERM)))
def test_a_demo_that_is_stopped_takes_its_servers_with_it(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen([*COMMAND, "--seconds", "60"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    try:
        postmaster = _postmaster(tmp_path)
        time.sleep(1)
        demo.send_signal(number)
        demo.communicate(timeout=120)
    finally:
        demo.kill()
    assert demo.returncode == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(postmaster, 0)
    assert _left_in(tmp_path) == []


def _demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def _left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("tidemill-")]


def _postmaster(folder: Path) -> int:
    """The server's process, once it is up. While initdb works there are passing files with negative numbers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for found in folder.glob("tidemill-postgres*/data/postmaster.pid"):
            with contextlib.suppress(FileNotFoundError):
                first, *_ = [*found.read_text().split(), "0"]
                if int(first) > 0:
                    return int(first)
        time.sleep(0.05)
    raise AssertionError("the server never came up")
