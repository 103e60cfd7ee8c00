"""A file or folder that a page, a docstring or a comment names is there; so is what code in a string imports."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "tidemill"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
HISTORY = {ROOT / "CHANGELOG.md"}  # names what was
FOLDERS = {p.name for root in (ROOT, SOURCE) for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")}
#: What looks like a path of ours and stands on a user's disk, or in a destination.
ELSEWHERE = re.compile(
    r"spark(-<\w+>)?/|_tidemill/.*|tidemill/<\w+>/|\$.*|/.*|~/.*|<.*|\.tidemill/.*|unix:.*|sql-common/.*|usr/.*|libs/.*"
)
NAME = re.compile(r"[\w.<>*…\-/]+")
WRITTEN = re.compile(r"`([^`\n]+)`|(?<![\w./`])((?:docs|tests|src|scripts|examples)/[\w.\-/]+\w)")


def paths(text: str) -> Iterator[str]:
    """Names of files and folders: what ends as one, and what begins with a folder of ours."""
    for code, plain in WRITTEN.findall(text):
        name = code or plain
        if not NAME.fullmatch(name) or "//" in name or ELSEWHERE.fullmatch(name):
            continue
        if name.endswith((".py", "/")) or ("/" in name and name.partition("/")[0] in FOLDERS):
            yield name


def is_there(name: str, beside: Path) -> bool:
    pattern = re.sub(r"<[^>]*>|…", "*", name.rstrip("/"))
    roots = (beside, ROOT, SOURCE, ROOT / "tests", ROOT / "docs")
    return any(any(root.glob(form)) for root in roots for form in (pattern, f"{pattern}.py", f"{pattern}-*.md"))


def prose(path: Path) -> str:
    """Docstrings and comments: every string that is a statement of its own, and every comment. Nothing of a file in
    which no line can name another: most cannot, and to take a file apart takes long."""
    text = path.read_text()
    if not any(paths(text)) and not any(line.count("`") % 2 for line in text.splitlines()):
        return ""
    found = []
    before = tokenize.INDENT
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        fresh = before in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.NL)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and fresh):
            found.append(token.string)
        if token.type != tokenize.COMMENT:
            before = token.type
    return "\n".join(found)


@pytest.mark.parametrize("page", [p for p in PAGES if p not in HISTORY], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_names_files_that_are_there(page: Path) -> None:
    assert [name for name in paths(page.read_text()) if not is_there(name, page.parent)] == []


def test_docstrings_and_comments_name_files_that_are_there() -> None:
    lost = {
        str(path.relative_to(ROOT)): missing
        for folder in ("src", "tests", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (missing := [name for name in paths(prose(path)) if not is_there(name, path.parent)])
    }
    assert lost == {}


def test_a_name_is_found_in_docstrings_and_comments_alone(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('"""See `gone/`."""\nname = "`elsewhere.py`"\nodd = "`"  # as docs/lost.md says, `other.py`\n')
    assert list(paths(prose(file))) == ["gone/", "docs/lost.md", "other.py"]
    file.write_text('odd = "`"  # `other.py`\n')
    assert list(paths(prose(file))) == ["other.py"]


ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


@cache
def names_of(module: str) -> set[str]:
    """What can be imported from a module or package of the tests; nothing from one that is not there."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = {each.stem for each in path.glob("*")}
    for node in ast.parse(file.read_text()).body if file.exists() else ():
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Import(names=imported) | ast.ImportFrom(names=imported):
                found |= {each.asname or each.name for each in imported}
            case ast.Assign():
                found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found


def lost_names(text: str) -> Iterator[str]:
    """What is imported from a module of the tests that has no such name."""
    for module, names in re.findall(r"^ *from (tests[\w.]*) import (\w[\w, ]*)$", text, re.M):
        for name in re.findall(r"\w+", re.sub(r" as \w+", "", names)):
            if name not in names_of(module):
                yield f"{module}.{name}"


def test_code_that_a_test_hands_to_another_process_imports_what_is_there() -> None:
    """It stands in a string, where no type checker looks."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    lost = {str(path.relative_to(ROOT)): names for path in tests if (names := [*lost_names(path.read_text())])}
    assert lost == {}
    code = "from tests.docs.test_files import ast, prose, ROOT, gone\n" + "from tests.docs.gone import prose\n"
    assert [*lost_names(code)] == ["tests.docs.test_files.gone", "tests.docs.gone.prose"]


def test_the_tree_of_the_architecture_is_the_tree() -> None:
    drawn = re.search(r"^## The tree.*?^```\n(.*?)^```", ARCHITECTURE, re.M | re.S)
    assert drawn is not None
    listed = [line.split()[0] for line in drawn[1].splitlines()]
    there = {f"{p.name}/" for p in SOURCE.iterdir() if p.is_dir() and any(p.glob("**/*.py"))}
    there |= {p.name for p in SOURCE.glob("*.py") if p.name != "__init__.py"}
    assert sorted(listed) == sorted(there)


def rows(after: str) -> list[list[str]]:
    """Cells of the first table after these words, without its head."""
    lines = ARCHITECTURE.partition(after)[2].partition("|---")[2].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize(("given", "example", "where"), rows("## Where does it come from?"))
def test_what_is_looked_for_is_where_the_architecture_says(given: str, example: str, where: str) -> None:
    place = re.findall(r"`([^`]+\.py)`", where)[0]
    assert example.strip("`") in (SOURCE / place).read_text(), given


@pytest.mark.parametrize(("files", "where"), rows("And files in the state directory"))
def test_a_file_of_the_state_directory_is_named_where_the_architecture_says(files: str, where: str) -> None:
    text = (SOURCE / where.split("`")[1]).read_text()
    assert [name for name in re.findall(r"`([\w.]+)`", files) if name not in text] == []


def test_the_file_names_that_recur_are_explained() -> None:
    explained = {name for cells in rows("the file names recur") for name in re.findall(r"`(\w+)`", cells[0])}
    files = [file for family in ("sources", "sinks") for file in (SOURCE / family).glob("[!_]*/*.py")]
    counts = Counter(file.stem for file in files)
    assert {name for name, count in counts.items() if count > 2} - explained == set()
    assert [name for name in explained if counts[name] == 0] == []


@pytest.mark.parametrize(("seam", "where", "tests"), rows("## Seams"))
def test_a_seam_and_the_tests_that_show_it_are_there(seam: str, where: str, tests: str) -> None:
    assert (SOURCE / where.strip("`")).exists(), seam
    named = re.findall(r"`(tests/[\w/]+\.py)`(?: `(\w+)`)?", tests)
    assert len(named) == tests.count("; ") + 1
    assert [name for file, name in named if name and f"def {name}(" not in (ROOT / file).read_text()] == []
