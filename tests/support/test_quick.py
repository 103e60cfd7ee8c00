"""Which tests are quick is found in their code, and a mistake fails."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support import quick
from tests.support.quick import is_quick, keep_files_in_memory
from tidemill.lab.servers.valkey import Valkey

ROOT = Path(__file__).parents[2]

_STARTS_A_SERVER = """
import contextlib, subprocess

def test_that_hides_it():
    with contextlib.suppress(AssertionError):
        subprocess.run(["valkey-server", "--port", "0"])

def test_that_runs_python():
    import sys
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


@pytest.fixture
def away() -> Valkey:
    """Made by a helper, never started: only who names it counts here."""
    return _helper()


def _helper() -> Valkey:
    return Valkey()


def test_a_test_without_servers_is_quick(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert is_quick(request.node)


def test_a_test_whose_fixture_reaches_a_server_through_a_helper_is_not_quick(
    request: pytest.FixtureRequest, away: Valkey
) -> None:
    assert not is_quick(request.node)


@pytest.mark.slow
def test_a_test_that_is_marked_slow_is_not_quick(request: pytest.FixtureRequest) -> None:
    assert not is_quick(request.node)


@pytest.mark.parametrize("fixture", ["database", "spark", "kafka", "mysql_server", "private_postgres"])
def test_fixtures_of_servers_and_of_spark_make_a_test_slow(request: pytest.FixtureRequest, fixture: str) -> None:
    _, found = request.session._fixturemanager.getfixtureclosure(request.node, (fixture,), ignore_args=frozenset())
    assert found[fixture]
    asking = SimpleNamespace(
        function=test_a_test_without_servers_is_quick,
        get_closest_marker=lambda name: None,
        _fixtureinfo=SimpleNamespace(name2fixturedefs=found),
    )
    assert not is_quick(cast(pytest.Item, asking))


def test_a_quick_test_that_starts_a_server_fails_even_if_it_hides_the_error(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_STARTS_A_SERVER)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml")]
    command += ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "TIDEMILL_SEED": "41"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "a quick test starts valkey-server" in done.stdout
    header, _, failure = done.stdout.partition("FAILURES")
    assert "seed: 41" in header
    assert "TIDEMILL_SEED=41" in failure


@pytest.mark.parametrize(("room", "chosen", "moved"), [(0, None, True), (1 << 60, None, False), (0, "/tmp", False)])
def test_files_go_to_memory_where_there_is_room_and_nobody_chose_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, chosen: str | None, moved: bool
) -> None:
    monkeypatch.setattr(quick, "_MEMORY", tmp_path)
    monkeypatch.setattr(quick, "_ROOM", room)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setenv("TMPDIR", chosen or "/tmp")
    if chosen is None:
        monkeypatch.delenv("TMPDIR")
    keep_files_in_memory()
    assert (tempfile.gettempdir() == str(tmp_path)) == moved
