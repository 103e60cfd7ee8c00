"""Whether scripts and functions that processors run compile, for `tidemill validate`: before `run` meets them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from tidemill.config import Pipeline
from tidemill.config.problem import DocumentError, Problem
from tidemill.errors import ConfigError, EnvironmentProblem

_CODE = ("inline", "file", "function")  # options that code is given by


def check_code(pipelines: Sequence[Pipeline]) -> dict[str, list[tuple[str, str]]]:
    """(what, fix) of code that could not be checked here, by pipeline: what it needs is not installed. `DocumentError`
    lists every script that does not compile, with its line."""
    problems: list[Problem] = []
    unchecked: dict[str, list[tuple[str, str]]] = {}
    for pipeline in pipelines:
        for number, spec in enumerate(pipeline.spec.processors):
            try:
                with closing(pipeline.build_processor(spec)) as processor:
                    processor.check_code()
            except EnvironmentProblem as error:
                what = f'code of processor "{spec.config.id}" was not compiled: {error.what}'
                unchecked.setdefault(pipeline.name, []).append((what, error.fix))
            except ConfigError as error:
                problems.append(_problem(pipeline, number, error))
    if problems:
        raise DocumentError.of(problems)
    return unchecked


def _problem(pipeline: Pipeline, number: int, error: ConfigError) -> Problem:
    """Where the document names the code: settings stand beside `type:` or under `config:`."""
    for option in _CODE:
        for path in (("spec", "processors", number, option), ("spec", "processors", number, "config", option)):
            at = pipeline.origins.get(".".join(map(str, path)).replace(f".{number}.", f"[{number}]."))
            file, _, line = (at or "").rpartition(":")
            if line.isdigit():
                return Problem(file, int(line), path, error.what, error.fix)
    return Problem(pipeline.file, 0, ("spec", "processors", number), error.what, error.fix)
