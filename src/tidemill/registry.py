"""Finds the members of a family: a module or package in `sources/`, `processors/`, `sinks/`, `formats/` or
`checkpoints/`, or an entry point.

A member has a `component` attribute (its class). Its name is the `type:` in YAML; names with an underscore are shared
by the members. Third parties
add members through the entry point group `tidemill.<family>` without touching this package.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import pkgutil
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tidemill.errors import ConfigError


def names(family: str) -> list[str]:
    """Every member's name, sorted. Does not import the members."""
    package = importlib.import_module(f"tidemill.{family}")
    built_in = {m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")}
    return sorted(built_in | {e.name for e in _entry_points(family)})


def load(family: str, name: str) -> Any:
    """The member's class; `ConfigError` with the nearest name if there is none."""
    for entry in _entry_points(family):
        if entry.name == name:
            return entry.load()
    if name not in names(family):
        known = names(family)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f'Did you mean "{near[0]}"? ' if near else ""
        raise ConfigError(f'no {family[:-1]} is called "{name}"', fix=f"{hint}Known: {', '.join(known)}.")
    return importlib.import_module(f"tidemill.{family}.{name}").component


def _entry_points(family: str) -> Iterable[importlib.metadata.EntryPoint]:
    return _read_entry_points(family, tuple(sys.path))


@lru_cache(maxsize=16)
def _read_entry_points(family: str, path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """To read the metadata of all packages takes milliseconds, and a document asks for each of its components. The path
    counts: Spark adds packages to that of a worker that is there already."""
    return tuple(importlib.metadata.entry_points(group=f"tidemill.{family}"))
