"""One process per pipeline, and no copies of its state directory: real locks, real directories."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import register
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.contracts import ConfirmedPosition
from tidemill.errors import AlreadyRunning, EnvironmentProblem, StateError
from tidemill.model.position import Position
from tidemill.service.run import ownership
from tidemill.service.run.ownership import lock_pipeline
from tidemill.service.runtime import Runtime
from tidemill.state.store import SqlStateStore
from tidemill.stream.spark import session

_HOLD = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tidemill.service.run.ownership import lock_pipeline
from tidemill.state import open_store
path = Path(sys.argv[1])
build_state = lambda: open_store(str(path.parent / "state.sqlite"))
with lock_pipeline(SimpleNamespace(name="orders", state_path=path, file="orders.yaml", build_state=build_state)):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _components(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def pipeline(tmp_path: Path) -> config.Pipeline:
    return load(tmp_path, tmp_path / "state")


def load(directory: Path, state: Path) -> config.Pipeline:
    path = directory / "orders.yaml"
    path.write_text(f"{PIPELINE}  state_dir: {state}\n  dlq: {{}}\n")
    (found,) = config.load(path)
    return found


@contextmanager
def held_elsewhere(pipeline: config.Pipeline) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", _HOLD, str(pipeline.state_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def everything(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


def test_a_second_run_ends_with_the_pid_of_the_first_and_touches_nothing(
    pipeline: config.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "create_session", lambda *a, **k: pytest.fail("Spark was started"))
    with held_elsewhere(pipeline) as first:
        before = everything(pipeline.state_path)
        with (
            Runtime(said=pipeline.state_path / "events.log") as runtime,
            pytest.raises(AlreadyRunning, match=f"pid {first.pid} on ") as refusal,
        ):
            runtime.start(runtime.add(pipeline))
        assert everything(pipeline.state_path) == before
    assert "Nothing was changed" in refusal.value.fix


def test_the_lock_of_a_killed_process_is_free(pipeline: config.Pipeline) -> None:
    with held_elsewhere(pipeline):
        pass
    with lock_pipeline(pipeline):
        pass


@pytest.mark.parametrize(
    "command",
    [("checkpoints", "set", 0), ("dlq", "replay"), ("recover", "--accept-gap"), ("adopt",)],
    ids=lambda command: command[0],
)
def test_a_command_that_needs_a_stopped_pipeline_names_the_process_that_runs_it(
    tidemill: Terminal, pipeline: config.Pipeline, command: tuple[object, ...]
) -> None:
    first, *rest = command
    verb = [rest.pop(0)] if first in ("checkpoints", "dlq") else []
    with held_elsewhere(pipeline) as holder:
        before = everything(pipeline.state_path)
        answer = tidemill(first, *verb, pipeline.file, *rest, "--yes")
        after = everything(pipeline.state_path)
    assert answer.code == 1
    assert f"pid {holder.pid} on " in answer.err
    assert {name: kept for name, kept in after.items() if "dlq.sqlite" not in name} == before


def test_a_copy_is_refused_while_the_original_is_there_and_can_be_adopted(
    tidemill: Terminal, pipeline: config.Pipeline, tmp_path: Path
) -> None:
    with lock_pipeline(pipeline):
        pass
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    copy = load(tmp_path, tmp_path / "copy")
    with (
        pytest.raises(EnvironmentProblem, match=r"is a copy of .*, which is still there") as refusal,
        lock_pipeline(copy),
    ):
        pass
    assert "tidemill adopt" in refusal.value.fix
    assert str(tmp_path / "state" / "orders") in refusal.value.what
    assert tidemill("adopt", copy.file).code == 3, "nobody was asked"
    answer = tidemill("adopt", copy.file, "--yes", "--json")
    assert "nothing to adopt" in tidemill("adopt", copy.file, "--yes").err
    assert answer.json["state"] == str(copy.state_path)
    for _ in range(2):
        with lock_pipeline(copy):
            pass
    with lock_pipeline(load(tmp_path, tmp_path / "state")):
        pass


def test_a_directory_that_was_renamed_goes_on(pipeline: config.Pipeline, tmp_path: Path) -> None:
    with lock_pipeline(pipeline):
        pass
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    moved = load(tmp_path, tmp_path / "elsewhere")
    with lock_pipeline(moved):
        pass
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "state")
    with pytest.raises(EnvironmentProblem, match="elsewhere"), lock_pipeline(load(tmp_path, tmp_path / "state")):
        pass


@pytest.mark.parametrize("filesystem", ["ext4", "fuse.somefs"])
def test_a_directory_restored_from_a_copy_is_refused_where_inodes_tell(
    pipeline: config.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filesystem: str
) -> None:
    monkeypatch.setattr(ownership, "_filesystem", lambda directory: filesystem)
    with lock_pipeline(pipeline):
        pass
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    (tmp_path / "state").rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone" / "orders")
    (tmp_path / "backup").rename(tmp_path / "state")
    if filesystem == "ext4":
        with pytest.raises(EnvironmentProblem, match="restored"), lock_pipeline(pipeline):
            pass
    else:
        with lock_pipeline(pipeline):
            pass


def test_an_inode_number_that_is_used_again_is_another_file(
    pipeline: config.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_filesystem", lambda directory: "ext4")
    monkeypatch.setattr(ownership, "_generation", lambda file: 1)
    with lock_pipeline(pipeline):
        pass
    monkeypatch.setattr(ownership, "_generation", lambda file: 2)
    with pytest.raises(EnvironmentProblem, match="restored"), lock_pipeline(pipeline):
        pass


def test_the_same_directory_under_two_names_is_no_copy(pipeline: config.Pipeline, tmp_path: Path) -> None:
    with lock_pipeline(pipeline):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "state")
    with lock_pipeline(load(tmp_path, tmp_path / "link")):
        pass


def test_what_the_state_store_kept_for_a_removed_directory_is_forgotten(pipeline: config.Pipeline) -> None:
    """Its position would be compared with a slot that a new life of the pipeline made."""
    with lock_pipeline(pipeline), closing(pipeline.build_state()) as state:
        state.confirm(pipeline.name, Position("0/7"), 0)
    with lock_pipeline(pipeline), closing(pipeline.build_state()) as state:
        assert state.confirmed(pipeline.name) is not None
    shutil.rmtree(pipeline.state_path)
    with lock_pipeline(pipeline), closing(pipeline.build_state()) as state:
        assert state.confirmed(pipeline.name) is None


def test_an_adopted_directory_keeps_its_state(tidemill: Terminal, pipeline: config.Pipeline, tmp_path: Path) -> None:
    with lock_pipeline(pipeline), closing(pipeline.build_state()) as state:
        state.confirm(pipeline.name, Position("0/7"), 7)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    copy = load(tmp_path, tmp_path / "copy")
    assert tidemill("adopt", copy.file, "--yes").code == 0
    with lock_pipeline(copy), closing(copy.build_state()) as state:
        assert state.confirmed(pipeline.name) == ConfirmedPosition(Position("0/7"), 7)


def test_a_state_store_that_cannot_be_used_now_keeps_only_a_new_directory_from_starting(
    pipeline: config.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise StateError("the state store cannot be used: disk full")

    with monkeypatch.context() as patched:
        patched.setattr(SqlStateStore, "claim", away)
        for _ in range(2):
            with pytest.raises(StateError), lock_pipeline(pipeline):
                pass
    with lock_pipeline(pipeline):
        pass
    monkeypatch.setattr(SqlStateStore, "claim", away)
    with lock_pipeline(pipeline):
        pass


def test_a_directory_from_before_directories_had_an_identity_opens(pipeline: config.Pipeline) -> None:
    pipeline.state_path.mkdir(parents=True)
    (pipeline.state_path / "told.json").write_text("{}")
    for _ in range(2):
        with lock_pipeline(pipeline):
            pass
    (pipeline.state_path / "identity.json").write_bytes(b"")  # a power cut while it was written
    with lock_pipeline(pipeline):
        pass


def test_a_state_directory_that_cannot_be_made_says_so(pipeline: config.Pipeline, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(EnvironmentProblem, match=r"cannot be used: .*irectory"), lock_pipeline(pipeline):
        pass
