"""Documents are masked once each, however often a server is asked for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemill import config
from tidemill.config import Pipeline
from tidemill.service.server.managed import MaskedSpecs

DOCUMENT = """
metadata: {name: orders}
spec:
  source: {type: postgres, config: {id: shop, dsn: "postgresql://cdc:secret@db/shop", tables: [public.orders]}}
  sinks: [{type: stdout, config: {id: out}}]
"""


def test_a_document_is_masked_once_until_it_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orders.yaml").write_text(DOCUMENT)
    (pipeline,) = config.load(tmp_path / "orders.yaml")
    masked: list[Pipeline] = []
    mask = Pipeline.mask_secrets

    def count(self: Pipeline) -> dict[str, Any]:
        masked.append(self)
        return mask(self)

    monkeypatch.setattr(Pipeline, "mask_secrets", count)
    specs = MaskedSpecs()
    shown = [specs.of(pipeline) for _ in range(200)]
    assert (len(masked), "secret" in str(shown)) == (1, False)
    changed = replace(pipeline, spec=pipeline.spec.model_copy(update={"ack": "logged"}))
    assert (specs.of(changed)["ack"], specs.of(changed)["ack"], len(masked)) == ("logged", "logged", 2)
    specs.forget("orders")
    assert specs.of(changed)["ack"] == "logged"
    assert len(masked) == 3
