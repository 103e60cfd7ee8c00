from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import register
from tests.support.terminal import Terminal
from tidemill import __version__
from tidemill.cli import main
from tidemill.config import json_schema
from tidemill.errors import SetupError


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    register(monkeypatch)
    return Terminal(capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(PIPELINE + f"  state_dir: {tmp_path}/state\n")
    return path


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    script = (
        "import sys\n"
        "from tidemill.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'pyspark', 'numba', 'pyarrow', 'pandas', 'pydantic', 'psycopg'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    times = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        times.append(time.perf_counter() - began)
        assert done.returncode == 0, done.stderr
    assert "validate" in done.stdout
    assert min(times) < 1.0  # 0.25 s on a quiet machine


def test_validating_loads_neither_spark_nor_numba(file: Path) -> None:
    file.write_text("metadata: {name: x}\nspec: {}\n")
    script = (
        "import sys\n"
        "from tidemill.cli.main import main\n"
        f"try:\n    main(['validate', {str(file)!r}])\n"
        "except SystemExit as end:\n    assert end.code == 2\n"
        "assert not {'pyspark', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)


def test_every_command_in_the_table_has_a_module_with_json_output(tidemill: Terminal) -> None:
    listed = tidemill("--help").out
    for name in ("validate", "doctor", "schema", "log", "checkpoints"):
        assert name in main.COMMANDS
        assert name in listed
    for words in (["validate"], ["doctor"], ["schema"], ["log", "ls"], ["log", "cat"], ["log", "stats"],
                  ["checkpoints", "show"], ["checkpoints", "history"], ["checkpoints", "set"]):  # fmt: skip
        answer = tidemill(*words, "--help")
        assert answer.code == 0
        assert "--json" in answer.out


@pytest.mark.parametrize("words", [(), ("log",), ("checkpoints",), ("dlq",), ("stream",), ("bench",)], ids=str)
def test_a_list_of_commands_shows_each_in_one_line(
    words: tuple[str, ...], tidemill: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = tidemill(*words, "--help").out.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


def test_version_and_usage_errors(tidemill: Terminal) -> None:
    assert tidemill("--version").out == f"tidemill {__version__}\n"
    wrong = tidemill("validat")
    assert wrong.code == 2
    assert "validate" in wrong.err
    assert tidemill("validate").code == 2
    assert tidemill("validate", "--nonsense").code == 2


def test_validate_shows_the_resolved_spec_without_secrets(tidemill: Terminal, file: Path) -> None:
    answer = tidemill("validate", file)
    assert answer.code == 0
    assert "pipeline orders is right" in answer.out
    assert "max_events: 200000" in answer.out
    assert "pond://frog:***@127.0.0.1/lake" in answer.out
    assert "croak" not in answer.out
    (pipeline,) = tidemill("validate", file, "--json").json["pipelines"]
    assert pipeline["file"] == str(file)
    assert pipeline["spec"]["source"]["config"]["dsn"] == "pond://frog:***@127.0.0.1/lake"


def test_a_wrong_file_is_exit_code_2_with_three_parts(tidemill: Terminal, file: Path) -> None:
    file.write_text(PIPELINE + "  bach: {}\n")
    answer = tidemill("validate", file)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[:2] == ['error: unknown key "bach"', f"  at {file}:8, spec.bach"]
    assert 'Did you mean "batch"?' in answer.err
    (problem,) = tidemill("validate", file, "--json").json["error"]["problems"]
    assert (problem["line"], problem["path"]) == (8, ["spec", "bach"])


def test_an_error_of_the_environment_is_exit_code_3(
    tidemill: Terminal, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SetupError("no privilege", where="source p", fix="Grant it.")

    monkeypatch.setattr("tidemill.config.load_all", fail)
    assert tidemill("validate", file).code == 3
    assert tidemill("validate", file, "--json").json["error"]["fix"] == "Grant it."


def test_schema_prints_or_writes_the_same_json(tidemill: Terminal, tmp_path: Path) -> None:
    assert tidemill("schema").json == json_schema()
    tidemill("schema", "--output", tmp_path / "s.json")
    assert (tmp_path / "s.json").read_text() == tidemill("schema", "--json").out


def test_a_reader_that_goes_away_leaves_no_traceback() -> None:
    command = f"{sys.executable} -c 'from tidemill.cli.main import main; main([\"schema\"])' | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.parametrize("command", ["run", "resync"])
def test_a_state_directory_that_cannot_be_written_is_explained_on_one_line(
    tidemill: Terminal, file: Path, tmp_path: Path, command: str
) -> None:
    """A place below a file stands for a read-only mount: root may write everywhere else."""
    (tmp_path / "state").write_bytes(b"")
    answer = tidemill(command, file, "--json", *(["--yes"] if command == "resync" else []))
    assert (answer.code, answer.err, len(answer.out.splitlines())) == (3, "", 1)
    assert str(tmp_path / "state") in answer.json["error"]["where"]
    assert answer.json["error"]["fix"]


def test_a_file_of_the_system_that_cannot_be_used_is_no_traceback(tidemill: Terminal, tmp_path: Path) -> None:
    answer = tidemill("schema", "--output", tmp_path / "missing" / "schema.json")
    assert answer.code == 3, answer.err
    assert answer.err.splitlines()[0] == "error: No such file or directory"
    assert "schema.json" in answer.err
