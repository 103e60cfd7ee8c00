"""Every error has a code that is its own for ever, and comes out of another process as what it was there."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

import tidemill
from tidemill.cli.terminal import show_error
from tidemill.errors import (
    ConfigError,
    DeliveryError,
    ErrorData,
    Poisoned,
    PositionLost,
    Refused,
    SourceError,
    TidemillError,
    from_data,
    is_retryable,
    to_data,
)

PAGE = Path(__file__).parent.parent / "docs/reference/errors.md"


def kinds() -> list[type[TidemillError]]:
    """All of ours, wherever they are defined."""
    for module in pkgutil.walk_packages(tidemill.__path__, "tidemill."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [kind for kind in _below(TidemillError) if kind.__module__.startswith("tidemill.")]


def _below(kind: type[TidemillError]) -> Iterator[type[TidemillError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _below(child)


def test_every_error_declares_a_code_of_its_own() -> None:
    codes = {kind: kind.__dict__.get("code", "") for kind in kinds()}
    assert [kind.__name__ for kind, code in codes.items() if not re.fullmatch("[a-z]+(-[a-z]+)*", code)] == []
    assert len(set(codes.values())) == len(codes)


def test_the_codes_are_those_that_users_were_promised() -> None:
    """A code that changes breaks somebody's program: the page is the list of what was promised."""
    promised = re.findall(r"^\| (?:&emsp;)*`(\w+)` \| `([\w-]+)` \|", PAGE.read_text(), re.M)
    assert dict(promised) == {kind.__name__: kind.code for kind in kinds()}


def test_an_error_comes_back_as_what_it_was() -> None:
    for kind in kinds():
        error = kind.__new__(kind)
        TidemillError.__init__(error, "what", where="where", fix="fix")
        data: ErrorData = orjson.loads(orjson.dumps(to_data(error)))
        for back in (from_data(data), pickle.loads(pickle.dumps(error))):
            assert (type(back), back.code, str(back)) == (kind, kind.code, str(error))
            assert (back.exit_code, is_retryable(back)) == (error.exit_code, is_retryable(error))


def test_reasons_and_other_fields_survive_pickling() -> None:
    error = Poisoned({7: "too long", 9: "no such column"}, where="sink")
    back = pickle.loads(pickle.dumps(error))
    assert (back.reasons, back.what, back.where) == (error.reasons, error.what, "sink")


def test_a_class_that_is_not_known_here_becomes_its_nearest_base_and_keeps_its_code() -> None:
    bases = ["pond-trouble", "position-lost", "source-failed"]
    strange: ErrorData = {"code": "pond-frozen", "bases": bases, "what": "ice", "exit_code": 7}
    error = from_data(strange)
    assert (type(error), error.code, error.exit_code, is_retryable(error)) == (PositionLost, "pond-frozen", 7, False)
    assert to_data(error)["bases"] == ["position-lost", "source-failed"]


def test_an_error_without_a_code_is_what_the_reader_expects() -> None:
    """As files of version 0.1 have it."""
    error = from_data({"what": "gone", "where": "slot", "fix": "Resync."}, SourceError)
    assert (type(error), error.code, str(error)) == (SourceError, "source-failed", "gone\n  at slot\nResync.")


def test_a_subclass_that_declares_no_code_goes_by_that_of_its_base() -> None:
    class Plain(Refused):
        pass

    back = from_data(to_data(Plain("no")))
    assert (type(back), back.code) == (Refused, "refused")


def test_a_code_is_given_once() -> None:
    with pytest.raises(TypeError, match=r'"position-lost" is that of tidemill\.errors\.PositionLost'):
        type("Other", (DeliveryError,), {"code": "position-lost"})


def test_an_error_as_json_has_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(ConfigError("no", where="a.yaml:3", fix="Yes."), as_json=True)
    assert orjson.loads(capsys.readouterr().out)["error"] == {
        "code": "config-invalid", "kind": "ConfigError", "bases": [], "what": "no", "where": "a.yaml:3", "fix": "Yes.",
        "exit_code": 2,
    }  # fmt: skip


def test_the_errors_of_a_component_are_known_once_the_component_is() -> None:
    """The driver and the supervisor load components before they run them: so they know what those may raise."""
    script = """
import importlib, pkgutil, sys, tidemill
from tidemill import errors, registry
import tidemill.service.run.pipeline_run
for family in ("sources", "sinks", "checkpoints"):
    for name in registry.names(family):
        registry.load(family, name)
known = set(errors._BY_CODE)
for module in pkgutil.walk_packages(tidemill.__path__, "tidemill."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(*sorted(set(errors._BY_CODE) - known))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
