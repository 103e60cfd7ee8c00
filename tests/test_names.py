"""A name in a traceback, a review or a search leads to one place, and that place is read in one sitting."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

MOST_LINES = 400
ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tidemill"
#: What is left or stands behind something else in space, and SQL that runs at destinations.
CLEAR = re.compile(
    r"(left|leaves?)[ _-](nothing |no byte |of the first attempt )?behind|nothing of the first attempt behind|"
    r"behind (a dam|a front|an\b|a load|our|it: an|a message that|`tidemill doctor`)|parked behind"
)


def test_a_class_name_stands_once_private_ones_too() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_file_is_read_in_one_sitting() -> None:
    lines = {str(p.relative_to(SOURCE)): len(p.read_text().splitlines()) for p in SOURCE.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_behind_is_said_as_after_or_lagging() -> None:
    """It means both: further on in the log, and not as far."""
    texts = [*SOURCE.rglob("*.py"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/sinks/*.md"), *ROOT.glob("examples/*")]
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        if path != SOURCE / "sinks/pgstream/functions.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\bbehind\b", CLEAR.sub("", line))
    ]
    assert lines == []
