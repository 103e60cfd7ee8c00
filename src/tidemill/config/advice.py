"""Advice that can be pasted. Who raises an error or has a notice does not know the pipeline's document: it says
`tidemill recover FILE --snapshot`, and where errors and status leave a pipeline FILE becomes the file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import TypeVar, cast

from tidemill.config.pipeline import Pipeline
from tidemill.errors import TidemillError

_RECOVERY = re.compile(r"\btidemill recover FILE (--snapshot|--accept-gap)")
_COMMAND = re.compile(r"\b(tidemill(?: [a-z]+){1,2}) FILE\b")
_UNWRITTEN = "FILE has to be written first"
Said = TypeVar("Said", bound=Mapping[str, object])
Error = TypeVar("Error", bound=TidemillError)


def fill_in(fix: str, pipeline: Pipeline) -> str:
    """A pipeline without a file keeps FILE, with what has to be in it; what its server does for it is the command that
    asks the server. Filled in twice is filled in once."""
    if pipeline.command_file is not None:
        named = f"{shlex.quote(pipeline.command_file)} --pipeline {pipeline.name}"
        return _COMMAND.sub(lambda found: f"{found[1]} {named}", fix)
    if pipeline.posted:
        fix = _RECOVERY.sub(rf"tidemill pipelines recover {pipeline.name} \1", fix)
    if _UNWRITTEN in fix or not _COMMAND.search(fix):
        return fix
    store = " and the state_uri that it has now" if pipeline.spec.state_uri else ""
    return (
        f"{fix.removesuffix('.')}. {_UNWRITTEN}, because this pipeline came from none: its document, with state_dir:"
        f" {pipeline.state_path.parent}{store}."
    )


def fill_in_error(error: Error, pipeline: Pipeline) -> Error:
    """The same error."""
    error.fix = fill_in(error.fix, pipeline)
    return error


def fill_in_data(said: Said, pipeline: Pipeline) -> Said:
    """An error or a notice as it stands in a status."""
    fix = said.get("fix")
    return cast(Said, {**said, "fix": fill_in(fix, pipeline)}) if isinstance(fix, str) else said
