"""An installation's state goes into a file only while nothing uses the store, and nobody else may read it."""

from __future__ import annotations

import fcntl
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.terminal import Terminal
from tidemill.contracts import Transition
from tidemill.errors import AlreadyRunning, ConfigError, StateError
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.service.server.tokens import Role, open_tokens
from tidemill.service.state_transfer import export_state, import_state
from tidemill.state import open_leases, open_store


@pytest.fixture
def state(tmp_path: Path) -> str:
    """The store of an installation with one token and one pipeline, which was stopped."""
    uri = str(tmp_path / "state" / "state.sqlite")
    with open_tokens(uri, create=True) as tokens:
        tokens.create("ann", Role.ADMIN)
    record(uri, "stopped")
    return uri


def record(uri: str, state: str) -> None:
    with closing(open_store(uri)) as store:
        store.claim("orders", "here")
        store.record("orders", Transition(state, "ada@mill pid 7", "", f"2026-01-31T12:00:00+00:00 {state}"))


def never(consequence: str) -> None:
    raise AssertionError(f"nobody is to be asked: {consequence}")


@contextmanager
def held(uri: str, process: LeaseProcess, seconds: float) -> Iterator[None]:
    with closing(open_leases(uri, seconds=5)) as leases:
        leases.renew("a", seconds, process.write())
        leases.take("orders", "a", None)
        yield


def test_the_file_is_its_owners_and_goes_into_another_store(state: str, tmp_path: Path) -> None:
    file, new = tmp_path / "moved.jsonl", str(tmp_path / "new" / "state.sqlite")
    done = export_state(state, file, never)
    assert (done.rows["tokens"], done.rows["transitions"], done.rows["documents"]) == (1, 1, 0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["moved.jsonl"], "no draft is left"
    assert import_state(new, file) == done
    with open_tokens(new) as tokens, open_tokens(state) as before:
        assert tokens.list() == before.list()
    with pytest.raises(ConfigError, match="in use"):
        import_state(new, file)


def test_a_file_that_is_there_is_not_written_over(state: str, tmp_path: Path) -> None:
    (file := tmp_path / "moved.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="there already"):
        export_state(state, file, never)
    assert file.read_text() == "mine"


def test_what_is_no_store_is_not_made_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no state store"):
        export_state(str(tmp_path / "none.sqlite"), tmp_path / "moved.jsonl", never)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_lives_refuses_the_export(state: str, tmp_path: Path) -> None:
    with held(state, LeaseProcess.own(), 10.0), pytest.raises(AlreadyRunning, match='"orders" runs') as refused:
        export_state(state, tmp_path / "moved.jsonl", never)
    assert refused.value.where == str(LeaseProcess.own())
    assert not (tmp_path / "moved.jsonl").exists()


def test_a_server_that_was_killed_here_refuses_nothing(state: str, tmp_path: Path) -> None:
    with held(state, replace(LeaseProcess.own(), started="0"), 3600.0):
        export_state(state, tmp_path / "moved.jsonl", never)


def test_a_server_elsewhere_is_watched_for_as_long_as_its_lease_lasts(state: str, tmp_path: Path) -> None:
    elsewhere = replace(LeaseProcess.own(), machine="another boot", host="cdc-2")
    with held(state, elsewhere, 0.5):
        export_state(state, tmp_path / "silent.jsonl", never)
    ended = threading.Event()

    def beat() -> None:
        with closing(open_leases(state, seconds=5)) as leases:
            while not ended.wait(0.05):
                leases.renew("a", 60.0, elsewhere.write())

    with closing(open_leases(state, seconds=5)) as leases:
        leases.renew("a", 60.0, elsewhere.write())
    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(AlreadyRunning) as refused:
            export_state(state, tmp_path / "alive.jsonl", never)
    finally:
        ended.set()
        beating.join(30)
    assert "cdc-2" in refused.value.where


def test_a_run_that_holds_its_directory_refuses_the_export(state: str, tmp_path: Path) -> None:
    record(state, "running")
    directory = tmp_path / "state" / "orders"
    directory.mkdir()
    (directory / "run.lock").write_text('{"pid": 4711, "host": "mill", "since": "today"}')
    with (directory / "run.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AlreadyRunning) as refused:
            export_state(state, tmp_path / "moved.jsonl", never)
    assert refused.value.where == "pid 4711 on mill since today"
    export_state(state, tmp_path / "moved.jsonl", never)  # it was killed: the lock is free


def test_where_it_cannot_be_told_whether_a_pipeline_runs_the_operator_is_asked(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(state, "running")
    file = tmp_path / "moved.jsonl"
    terminal = Terminal(capsys)
    refused = terminal("state", "export", str(file), "--state", state, "--json")
    assert refused.code == StateError("").exit_code
    assert "orders (ada@mill pid 7" in refused.json["error"]["what"]
    assert not file.exists()
    done = terminal("state", "export", str(file), "--state", state, "--yes", "--json")
    assert (done.code, done.json["rows"]["tokens"]) == (0, 1)
    new = str(tmp_path / "new.sqlite")
    brought = terminal("state", "import", str(file), "--state", new)
    assert brought.code == 0, brought.out
    assert "and no other" in brought.out
    again = terminal("state", "import", str(file), "--state", new, "--json")
    assert (again.code, again.json["error"]["code"]) == (2, "config-invalid")
