"""One mistake in a pipeline document, and the error that lists all of them at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.errors import ConfigError

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` is empty when the mistake is in the text itself (a variable, YAML syntax)."""

    file: str
    line: int
    path: Path
    what: str
    fix: str = ""

    @property
    def where(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}, {dotted_path(self.path)}" if self.path else place


class DocumentError(ConfigError):
    """Every problem found in one reading, in the order of the file; `problems` keeps them apart for `--json`."""

    code = "document-invalid"

    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> DocumentError:
        found = tuple(sorted(problems, key=lambda p: (p.file, p.line)))
        if len(found) == 1:
            error = cls(found[0].what, where=found[0].where, fix=found[0].fix)
        else:
            parts = (str(ConfigError(p.what, where=p.where, fix=p.fix)) for p in found)
            files = dict.fromkeys(p.file for p in found)
            error = cls(f"{len(found)} mistakes in {', '.join(files)}:\n\n" + "\n\n".join(parts))
        error.problems = found
        return error


def dotted_path(path: Sequence[str | int]) -> str:
    """`spec.sinks[1].config.id`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def suggest(name: str, known: Iterable[str], *, noun: str = "Known") -> str:
    """The nearest valid name, and all of them when they are few."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
    hint = f'Did you mean "{near[0]}"?' if near else ""
    listed = f"{noun}: {', '.join(names)}." if names and len(names) <= 25 else ""
    return " ".join(part for part in (hint, listed) if part)
