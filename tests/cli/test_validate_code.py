"""`tidemill validate` compiles what processors run: the mistake is told with its line, before `run` meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

DOCUMENT = """\
metadata: {name: scripts}
spec:
  source: {type: postgres, config: {id: shop, dsn: "postgresql://u@127.0.0.1/x", tables: [public.orders]}}
  processors:
"""
SINK = "  sinks: [{type: stdout, config: {id: out}}]\n"


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def document(directory: Path, *processors: str) -> Path:
    file = directory / "scripts.yaml"
    file.write_text(DOCUMENT + "".join(f"    - {each}\n" for each in processors) + SINK)
    return file


def inline(*lines: str, name: str = "js") -> str:
    return f"type: javascript\n      id: {name}\n      inline: |\n" + "\n".join(f"        {line}" for line in lines)


def test_right_code_is_right_and_the_verdict_is_the_last_line(tidemill: Terminal, directory: Path) -> None:
    (directory / "good.js").write_text("const processBatch = (events) => events;\n")
    (directory / "good.py").write_text("raise SystemExit('this is not run')\ndef process(batch):\n    return batch\n")
    (directory / "shop_functions.py").write_text(
        "try:\n    from json import loads as check\nexcept ImportError:\n    check = None\n"
    )
    file = document(
        directory, inline("function process(ev) { return ev; }"), "{type: javascript, id: other, file: good.js}",
        "{type: python, id: py, file: good.py}", "{type: python, id: mod, function: 'shop_functions:check'}",
    )  # fmt: skip
    found = tidemill("validate", file)
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines()[-1] == f"{file}: pipeline scripts is right"
    assert tidemill("validate", file, "--quiet").out.splitlines() == [f"{file}: pipeline scripts is right"]


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (
            inline("function process(ev) {", "  return ev..x;", "}"),
            ("SyntaxError: Unexpected token '.' in `return ev..x;` at js.js:2", "Mend the script"),
        ),
        (
            inline("const a = 1;", "missing.call();"),
            ("ReferenceError: missing is not defined in `missing.call();` at js.js:2",),
        ),
        (inline("function proces(ev) { return ev; }"), ("defines neither processBatch nor process",)),
        ("{type: javascript, id: js, file: gone.js}", ("the script gone.js cannot be read",)),
        ("{type: python, id: py, file: bad.py}", ("in `return batch +` at bad.py:2", "Mend that line.")),
        ("{type: python, id: py, file: other.py}", ("other.py has no function called process", "It defines: proces.")),
        ("{type: python, id: py, function: 'other:check'}", ("other.py has no function called check",)),
        ("{type: python, id: py, function: 'not.there:check'}", ("there is no module not",)),
    ],
)
def test_code_that_does_not_compile_is_exit_code_2_with_line_and_fix(
    tidemill: Terminal, directory: Path, processor: str, said: tuple[str, ...]
) -> None:
    (directory / "bad.py").write_text("def process(batch):\n    return batch +\n")
    (directory / "other.py").write_text("def proces(batch):\n    return batch\n")
    file = document(directory, processor)
    found = tidemill("validate", file)
    assert (found.code, found.out) == (2, "")
    assert f"at {file}:" in found.err
    for words in said:
        assert words in found.err


def test_all_mistakes_are_told_at_once_each_with_its_place_in_the_document(tidemill: Terminal, directory: Path) -> None:
    file = document(directory, inline("function process(ev {", name="one"), inline("let x = ;", name="two"))
    error = tidemill("validate", file, "--json").json["error"]
    assert error["code"] == "document-invalid"
    assert [(p["line"], p["path"][-1]) for p in error["problems"]] == [(7, "inline"), (11, "inline")]
    assert ["one.js:1" in error["problems"][0]["what"], "two.js:1" in error["problems"][1]["what"]] == [True, True]


def test_a_script_that_never_ends_does_not_hold_validate(tidemill: Terminal, directory: Path) -> None:
    file = document(directory, inline("while (true) {}") + "\n      limits: {timeout_ms: 200}")
    found = tidemill("validate", file)
    assert found.code == 2
    assert "does not load: it ran longer than 2000 ms" in found.err
