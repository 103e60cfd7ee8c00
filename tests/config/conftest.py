from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.components import register

PIPELINE = """\
metadata: {name: orders, tenant: acme}
spec:
  source:
    type: pond
    config: {id: p, dsn: "pond://frog:croak@127.0.0.1/lake"}
  sinks:
    - {type: bucket, config: {id: b}}
"""


@pytest.fixture(autouse=True)
def _components(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A pipeline file; what is given goes below the smallest pipeline that is right, or replaces it."""

    def write(extra: str = "", *, base: str = PIPELINE, name: str = "orders.yaml") -> Path:
        file = tmp_path / name
        file.write_text(base + extra)
        return file

    return write
