from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import register
from tests.support.terminal import Terminal
from tidemill import __version__, config
from tidemill.cli import main
from tidemill.config import json_schema
from tidemill.errors import SetupError
from tidemill.schema.registry import SchemaRegistry


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    register(monkeypatch)
    return Terminal(capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(PIPELINE + f"  state_dir: {tmp_path}/state\n")
    return path


PARSED = """
import sys
from tidemill.cli import main
calls = [(0, ["--help"]), *((0, [name, "--help"]) for name in main.COMMANDS)]
calls += [
    (2, ["validat"]), (2, ["run"]), (2, ["run", "x.yaml", "--drain", "soon"]), (2, ["run", "missing.yaml"]),
    (2, ["run", "missing.yaml", "--json"]), (2, ["validate", "missing.yaml"]), (2, ["doctor", "missing.yaml"]),
    (2, ["dlq", "ls", "missing.yaml"]), (2, ["checkpoints", "show", "missing.yaml"]), (2, ["log", "cat"]),
    (2, ["log", "ls", "missing.yaml"]), (2, ["demo", "--seconds", "many"]), (2, ["demo", "--source", "oracle"]),
    (2, ["bench", "nonsense"]), (2, ["serve", "--nonsense"]),
]
for code, arguments in calls:
    try:
        main.main(arguments)
    except SystemExit as end:
        assert (end.code or 0) == code, (arguments, end.code)
    heavy = {"pyspark", "numba", "numpy", "pyarrow", "pandas", "duckdb", "psycopg", "fastapi", "grpc"}
    assert not heavy & set(sys.modules), (arguments, heavy & set(sys.modules))
"""


def test_a_command_line_is_judged_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARSED], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "validate" in done.stdout


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


GROUPS = ("log", "checkpoints", "dlq", "stream", "token", "pipelines", "bench", "snapshot", "schemas", "ddl", "sensing",
          "drift", "source", "process")  # fmt: skip


@pytest.mark.parametrize("words", [(), *((group,) for group in GROUPS)], ids=str)
def test_a_list_of_commands_shows_each_in_one_line(
    words: tuple[str, ...], tidemill: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = tidemill(*words, "--help").out.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


def test_a_file_with_the_character_nul_is_a_mistake_in_its_line(tidemill: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    for written in (b"\0", rb'"\0"'):
        file.write_bytes(b"metadata: {name: orders}\nspec: {state_dir: " + written + b"}\n")
        done = tidemill("validate", file)
        assert done.code == 2
        assert f"at {file}:2" in done.err


def test_version_and_usage_errors(tidemill: Terminal) -> None:
    assert tidemill("--version").out == f"tidemill {__version__}\n"
    wrong = tidemill("validat")
    assert wrong.code == 2
    assert "validate" in wrong.err
    assert tidemill("validate").code == 2
    assert tidemill("validate", "--nonsense").code == 2


@pytest.mark.parametrize(
    ("arguments", "what", "called"),
    [
        (("validat",), "validate", "tidemill"),
        (("validate",), "give pipeline files", "tidemill validate"),
        (("validate", "--nonsense", "x.yaml"), "--nonsense", "tidemill validate"),
        (("run", "x.yaml", "--drain", "soon"), "--drain", "tidemill run"),
        (("log", "cat"), "Missing argument", "tidemill log cat"),
    ],
)
def test_with_json_a_wrong_command_line_is_json_too(
    tidemill: Terminal, arguments: tuple[str, ...], what: str, called: str
) -> None:
    found = tidemill(*arguments, "--json")
    assert (found.code, found.err) == (2, "")
    error = found.json["error"]
    assert (error["code"], error["where"]) == ("usage", called)
    assert what in error["what"]
    assert f"{called} --help" in error["fix"]


def test_with_json_help_is_help_and_exit_codes_stay(tidemill: Terminal, file: Path) -> None:
    assert "--json" in tidemill("validate", "--help", "--json").out
    assert tidemill("validate", file, "--json").code == 0
    assert tidemill("schema", "--json").code == 0


def test_validate_shows_the_resolved_spec_without_secrets(tidemill: Terminal, file: Path) -> None:
    answer = tidemill("validate", file)
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == f"{file}: pipeline orders is right"
    assert "max_events: 500000" in answer.out
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


TABLE = """
from tidemill.cli import main, terminal
main.app = terminal.commands()
main.app.command()(lambda: terminal.show_table(("name",), [("orders",)] * 10))
main.main([])
"""


@pytest.mark.parametrize(
    "script",
    [
        "from tidemill.cli.main import main; main(['--help'])",
        "from tidemill.cli.main import main; main(['schema', '--json'])",
        TABLE,
    ],
    ids=["help", "json", "table"],
)
def test_a_reader_that_goes_away_ends_the_command_as_it_ends_other_programs(script: str) -> None:
    ear, mouth = os.pipe()
    os.close(ear)
    done = subprocess.run([sys.executable, "-c", script], stdout=mouth, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(mouth)
    assert (done.returncode, done.stderr) == (main.NOBODY_READS, b"")


EMPTY = {
    ("dlq", "ls"): "orders has no dead letters.",
    ("schemas", "ls"): "orders has met no table yet",
    ("ddl", "ls"): "No schema change has come to the sinks of orders yet",
    ("ddl", "plan"): "No schema change waits in the log of orders.",
    ("drift", "ls"): "orders has no drift above its thresholds",
    ("sensing", "ls"): "orders has looked at no events yet",
    ("checkpoints", "history"): "orders has no checkpoint yet",
    ("snapshot", "status"): "orders has no snapshot",
    ("log", "ls"): "The log has no appends yet",
}


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_a_list_of_nothing_is_a_sentence(tidemill: Terminal, file: Path, words: tuple[str, str]) -> None:
    file.write_text(file.read_text() + "  dlq: {}\n  schema_sensing: {enabled: true}\n")
    (pipeline,) = config.load(file)
    pipeline.state_path.mkdir(parents=True)
    with closing(pipeline.build_state()) as state, closing(SchemaRegistry(pipeline.registry_path)) as registry:
        state.claim("orders", "a directory")
        assert registry.newest("public.orders") is None
    answer = tidemill(*words, file)
    assert (answer.code, len(answer.out.splitlines())) == (0, 1), answer
    assert answer.out.startswith(EMPTY[words])


@pytest.mark.parametrize("command", ["run", "recover"])
def test_a_state_directory_that_cannot_be_written_is_explained_on_one_line(
    tidemill: Terminal, file: Path, tmp_path: Path, command: str
) -> None:
    """A place below a file stands for a read-only mount: root may write everywhere else."""
    (tmp_path / "state").write_bytes(b"")
    answer = tidemill(command, file, "--json", *(["--accept-gap", "--yes"] if command == "recover" else []))
    assert (answer.code, answer.err, len(answer.out.splitlines())) == (3, "", 1)
    assert str(tmp_path / "state") in answer.json["error"]["where"]
    assert answer.json["error"]["fix"]


def test_a_file_of_the_system_that_cannot_be_used_is_no_traceback(tidemill: Terminal, tmp_path: Path) -> None:
    answer = tidemill("schema", "--output", tmp_path / "missing" / "schema.json")
    assert answer.code == 3, answer.err
    assert answer.err.splitlines()[0] == "error: No such file or directory"
    assert "schema.json" in answer.err
