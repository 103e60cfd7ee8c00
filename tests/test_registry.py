"""Members of other packages are found by their entry points."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from tidemill import registry


def test_a_package_that_comes_to_the_path_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a Spark worker that lives already."""
    assert "flume" not in registry.names("sinks")
    described = tmp_path / "flume-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: flume\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[tidemill.sinks]\nflume = fractions:Fraction\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "flume" in registry.names("sinks")
    assert "flume" not in registry.names("sources")
    assert registry.load("sinks", "flume").__name__ == "Fraction"


def test_the_installed_packages_are_read_once_for_each_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reads: list[str] = []
    real = importlib.metadata.entry_points

    def read(group: str) -> object:
        reads.append(group)
        return real(group=group)

    monkeypatch.setattr(importlib.metadata, "entry_points", read)
    monkeypatch.syspath_prepend(str(tmp_path))
    for family in ("sources", "sinks", "sinks", "formats", "sources"):
        assert registry.names(family)
    assert reads == ["tidemill.sources", "tidemill.sinks", "tidemill.formats"]
