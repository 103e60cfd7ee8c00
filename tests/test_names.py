"""A name in a traceback, a review or a search leads to one place, and that place is read in one sitting."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

MOST_LINES = 400
MOST_TEST_LINES = 500
MOST_MODULES, MOST_WITHOUT_A_MAP = 25, 12
#: One module for each command: that is the map.
LISTS = {"cli"}
FAMILIES = {"sources", "sinks", "decoders", "formats", "processors", "checkpoints"}
ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tidemill"
#: What is left or stands behind something else in space, and SQL that runs at destinations.
CLEAR = re.compile(
    r"(left|leaves?)[ _-](nothing |no byte |of the first attempt )?behind|nothing of the first attempt behind|"
    r"behind (a dam|a front|an\b|a load|our|it: an|a message that|`tidemill doctor`)|parked behind"
)

#: Words that nobody of the field would search for, each with the one that is used instead.
STANDARD = {
    "ahead": "prefetch, unread", "answer": "lane result", "answers": "lane results", "behind": "after, lagging",
    "examine": "check", "gulp": "buffered read", "gulps": "buffered reads", "handover": "emit",
    "horizon": "high-water mark", "letter": "dead letter", "letters": "dead letters", "moment": "timestamp",
    "moments": "timestamps, temporal", "patience": "timeout", "station": "baseline", "texts": "strings",
    "told": "confirmed", "trouble": "last_error", "words": "tokens",
}  # fmt: skip
#: Names that stay: options of released versions, capture's distance from delivery, and machine words of 64 bits.
KEPT = {"max_letters", "ahead_bytes"}
MACHINE_WORDS = {
    "decoders/binlog/cells.py", "encoding/numbers.py", "formats/_shared/binary.py", "processors/javascript/columns.py",
    "processors/mask/blake2.py", "sinks/kafka/librdkafka.py",
}  # fmt: skip


def test_a_class_name_stands_once_private_ones_too() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name, kind, line in _names(path):
            if kind is ast.ClassDef:
                places[name].append(f"{path.relative_to(SOURCE)}:{line}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_file_is_read_in_one_sitting() -> None:
    lines = {str(p.relative_to(SOURCE)): len(p.read_text().splitlines()) for p in SOURCE.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_a_test_module_is_about_one_subject() -> None:
    """As a rule it is no longer than this then; what several need is in the folder's conftest.py and support.py."""
    files = [path for folder in ("tests", "scripts") for path in (ROOT / folder).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {path: count for path, count in lines.items() if count > MOST_TEST_LINES} == {}


def test_a_listing_of_a_family_shows_its_members_and_what_they_share() -> None:
    """A member of a family that is configured has a component; a decoder has a source that uses it."""
    sources = "\n".join(path.read_text() for path in (SOURCE / "sources").rglob("*.py"))
    strays = {
        f"{family}/{path.name}"
        for family in FAMILIES
        for path in (SOURCE / family).iterdir()
        if path.name not in ("__init__.py", "_shared", "_shared.py", "__pycache__")
        and not _is_member(path, family, sources)
    }
    assert strays == set()


def _is_member(path: Path, family: str, sources: str) -> bool:
    if "_shared" in path.stem:
        return False
    if family == "decoders":
        return f"from tidemill.decoders.{path.stem} import" in sources
    code = (path / "__init__.py" if path.is_dir() else path).read_text()
    return any(
        isinstance(node, ast.Assign) and "component" in {ast.unparse(target) for target in node.targets}
        for node in ast.parse(code).body
    )


def test_behind_is_said_as_after_or_lagging() -> None:
    """It means both: further on in the log, and not as far."""
    texts = [*SOURCE.rglob("*.py"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/sinks/*.md"), *ROOT.glob("examples/*.*")]
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        if path != SOURCE / "sinks/pgstream/functions.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\bbehind\b", CLEAR.sub("", line))
    ]
    assert lines == []


def test_names_are_the_words_of_the_field() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        place = str(path.relative_to(SOURCE))
        for name, _, line in [(path.stem, ast.Module, 0), *_names(path)]:
            wrong = _parts(name) & STANDARD.keys()
            if not place.startswith("stream/"):  # elsewhere it is what a server answers
                wrong -= {"answer", "answers"}
            if place in MACHINE_WORDS:
                wrong -= {"words"}
            if wrong and name not in KEPT:
                found.append(f"{place}:{line}: {name}: {', '.join(STANDARD[word] for word in sorted(wrong))}")
    assert found == []


def test_a_map_of_a_package_names_every_module_and_none_that_is_gone() -> None:
    """Where the docstring of an `__init__` lists modules, one a line: the name, two spaces or more, what it is."""
    wrong, maps = {}, set()
    for path in sorted(SOURCE.rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        there = {
            p.stem if p.suffix == ".py" else p.name for p in path.parent.iterdir() if p.suffix == ".py" or p.is_dir()
        }
        there -= {"__init__", "__pycache__"}
        listed = {name for name, _, _ in re.findall(r"^ *(\w+)(\.py|/)?  +(\S)", text, re.M)}
        if len(listed & there) < 3:
            continue
        maps.add(path.parent.relative_to(SOURCE).as_posix())
        if problem := (listed - there) | (there - set(re.findall(r"\w+", text))):
            wrong[str(path.relative_to(SOURCE))] = sorted(problem)
    assert wrong == {}
    rooms = {
        path.parent.relative_to(SOURCE).as_posix(): len(_modules(path.parent)) for path in SOURCE.rglob("__init__.py")
    }
    assert {room: count for room, count in rooms.items() if count > MOST_MODULES and room not in LISTS} == {}
    # What lies in a member's package is named as in every other (ARCHITECTURE.md); elsewhere a map says what is where.
    large = {room for room, count in rooms.items() if count > MOST_WITHOUT_A_MAP and room not in LISTS}
    assert {room for room in large - maps if room.split("/")[0] not in FAMILIES} == set()


def _modules(folder: Path) -> list[Path]:
    return [each for each in folder.glob("*.py") if each.stem != "__init__"]


@cache
def _names(path: Path) -> list[tuple[str, type[ast.AST], int]]:
    """What a file names itself: definitions, parameters, variables and attributes that are set."""
    return list(_find_names(ast.parse(path.read_text())))


def _find_names(tree: ast.AST) -> Iterator[tuple[str, type[ast.AST], int]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, type(node), node.lineno
            case ast.arg(arg=name):
                yield name, type(node), node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, type(node), node.lineno


def _parts(name: str) -> set[str]:
    plain = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    return set(re.sub(r"dead_letters?", "", plain).split("_"))


#: Past participles that do not end in -ed, and words that end like a participle and are none.
IRREGULAR = {
    "begun", "born", "bound", "broken", "brought", "built", "chosen", "done", "drawn", "found", "frozen", "given",
    "gone", "heard", "held", "hidden", "kept", "known", "left", "lost", "made", "met", "paid", "proven", "said", "seen",
    "sent", "shown", "stood", "taken", "thrown", "told", "torn", "written",
}  # fmt: skip
NO_PARTICIPLES = {
    "binding", "bound", "bring", "building", "embed", "encoding", "ending", "everything", "exceed", "feed", "finding",
    "mapping", "meaning", "need", "nothing", "ordering", "padding", "ping", "proceed", "reading", "seed", "setting",
    "something", "speed", "string", "succeed", "timing", "warning",
}  # fmt: skip
#: Methods that ask an object for a state, or tell it of one, where the object is the subject: `attempt.refused()`.
STATES = {
    "acknowledged", "broken", "changed", "compiled", "confirmed", "connected", "consumed", "delivered", "failed",
    "fired", "fixed", "known", "missing", "noted", "packed", "passed", "processed", "reached", "refused", "standing",
    "stored", "streaming",
}  # fmt: skip


def test_a_function_is_a_verb_or_a_noun_not_a_participle() -> None:
    """`opened()` does not say what it does; `open_tokens()` does. `with database.writing()` says what goes on."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        methods = {each for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body}
        found += [
            f"{path.relative_to(SOURCE)}:{node.lineno}: {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_participle(node, node in methods)
        ]
    assert found == []


def _is_participle(function: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool) -> bool:
    """The name is one word. Properties and what is true or false are states; context managers are what goes on."""
    name, kind = function.name.strip("_"), ast.unparse(function.returns) if function.returns else ""
    decorators = {ast.unparse(each).rpartition(".")[2] for each in function.decorator_list}
    if "_" in name or name in NO_PARTICIPLES or (is_method and name in STATES) or kind == "bool":
        return False
    if any("property" in each or "command" in each for each in decorators):
        return False
    if name.endswith("ing"):
        return not decorators & {"contextmanager"} and not kind.startswith("AbstractContextManager")
    return name in IRREGULAR or name.endswith("ed")
