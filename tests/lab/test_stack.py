"""`make up | ps | logs | down`: servers that outlive the command, and end with `down`, those that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from tidemill.lab.stack import SERVERS, KeptServer

Stack = Callable[..., Any]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    def call(*arguments: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "tidemill.lab.stack", *arguments, "--at", str(tmp_path / "stack"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return orjson.loads(done.stdout)

    yield call
    call("down")


def answers(url: str) -> bool:
    at = urlsplit(url)
    try:
        with socket.create_connection((at.hostname or "", at.port or 0), 2):
            return True
    except OSError:
        return False


@pytest.mark.slow
def test_two_servers_start_are_listed_and_end_and_nothing_is_left(stack: Stack, tmp_path: Path) -> None:
    first = stack("up", "redis", "nats")["servers"]
    assert set(first) == {"redis", "nats"}
    addresses = [first["redis"]["REDIS_URI"], first["nats"]["NATS_URL"]]
    assert all(map(answers, addresses))
    listed = {each["name"]: each for each in stack("ps")}
    assert {name: each["state"] for name, each in listed.items()} == {"redis": "up", "nats": "up"}
    assert all(Path(each["log"]).is_relative_to(tmp_path) for each in listed.values())
    assert [each["name"] for each in stack("ps", "nats")] == ["nats"]
    assert "Server is ready" in " ".join(stack("logs", "nats")["nats"])
    assert stack("up", "redis", "nats")["servers"] == first, "what is up stays as it is"
    assert stack("down", "nats") == {"ended": ["nats"]}
    assert (answers(addresses[0]), answers(addresses[1])) == (True, False)
    assert stack("down") == {"ended": ["redis"]}
    assert not answers(addresses[0])
    assert list((tmp_path / "stack").iterdir()) == []
    assert (stack("ps"), stack("down")) == ([], {"ended": []})


@pytest.mark.slow
def test_a_server_whose_keeper_was_killed_is_ended_by_its_own_pid(stack: Stack, tmp_path: Path) -> None:
    address = stack("up", "redis")["servers"]["redis"]["REDIS_URI"]
    kept = KeptServer.read(tmp_path / "stack", "redis")
    assert kept is not None
    os.kill(kept.keeper.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while not kept.keeper.is_gone:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [each["state"] for each in stack("ps")] == ["up, without its keeper"]
    assert answers(address)
    stack("down")
    assert kept.server.is_gone


@pytest.mark.slow
def test_an_unknown_server_is_refused_with_those_that_there_are(stack: Stack) -> None:
    refused = stack("up", "oracle", code=2)
    assert refused["error"]["fix"] == f"There are: {', '.join(SERVERS)}."
