"""A name in a traceback, a review or a search leads to one place, and that place is read in one sitting."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

MOST_LINES = 400
SOURCE = Path(__file__).parent.parent / "src" / "tidemill"


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
