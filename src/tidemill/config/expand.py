"""`${VAR}` and `${VAR:-default}`, expanded in the text before YAML sees it.

The rules, all of them:

    ${VAR}            the variable; not set is an error
    ${VAR:-default}   the default when the variable is not set or empty
    $${VAR}           stays as ${VAR}
    ${after.region}   has a dot, so it is a routing template: left for the sink
    # ${VAR}          a line that is only a comment is left alone

Values are put in as they are and not expanded again. A `$` without a brace means nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.config.problem import Problem

# A row of dollars is looked at once, from its beginning: the text may come from anybody.
REFERENCE = re.compile(r"(?<!\$)(?P<dollars>\$+)\{(?P<body>[^}\n]*)(?P<close>\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEMPLATE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)+")


@dataclass(frozen=True, slots=True)
class Expanded:
    """`lines[i]` is the line of the file (from 1) that line `i` of `text` came from: values may have several lines."""

    text: str
    lines: tuple[int, ...]
    problems: tuple[Problem, ...]

    def line(self, index: int) -> int:
        return self.lines[min(index, len(self.lines) - 1)] if self.lines else 1


def expand(text: str, environment: Mapping[str, str], file: str) -> Expanded:
    """Never raises: a missing variable becomes a problem, so that all of them are reported together."""
    problems: list[Problem] = []
    result: list[str] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.lstrip().startswith("#"):
            line = _expand_line(line, environment, file, number, problems)
        result.append(line)
        lines += [number] * (line.count("\n") + 1)
    return Expanded("\n".join(result), tuple(lines), tuple(problems))


def _expand_line(line: str, environment: Mapping[str, str], file: str, number: int, problems: list[Problem]) -> str:
    def problem(what: str, fix: str) -> str:
        problems.append(Problem(file, number, (), what, fix))
        return ""

    def replace(match: re.Match[str]) -> str:
        dollars, body = match["dollars"], match["body"]
        kept = "$" * (len(dollars) // 2)
        if len(dollars) % 2 == 0:
            return f"{kept}{{{body}{match['close']}"
        name, has_default, default = body.partition(":-")
        if _TEMPLATE.fullmatch(name):
            return match[0]
        if not match["close"] or not _NAME.fullmatch(name) or "${" in default:
            return problem(
                f'"{match[0]}" is not a variable',
                "Write ${NAME} or ${NAME:-default} on one line, without nesting; $${ for a literal ${.",
            )
        value = environment.get(name)
        if has_default and not value:
            return kept + default
        if value is None:
            return problem(f"the environment variable {name} is not set", _missing_variable(name, environment))
        return kept + value

    return REFERENCE.sub(replace, line)


def _missing_variable(name: str, environment: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, environment, n=3, cutoff=0.6)
    hint = f"Set are: {', '.join(near)}. " if near else ""
    return f"{hint}Export {name}, or give a default with ${{{name}:-...}}."
