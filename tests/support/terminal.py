"""Calls the command line as a user would, without a new process for each call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from tidemill.cli.main import main


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


class Terminal:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> ScriptedResponse:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return ScriptedResponse(int(caught.value.code or 0), captured.out, captured.err)
