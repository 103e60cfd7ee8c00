from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill import config
from tidemill.config.notes import notes
from tidemill.errors import ConfigError

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("text", "enabled"), [("", False), ("  dlq:\n", True), ("  dlq: {}\n", True), ("  dlq: {enabled: false}\n", False)]
)
def test_dead_letters_are_off_unless_the_document_names_them(write: Write, text: str, enabled: bool) -> None:
    (pipeline,) = config.load(write(text))
    assert pipeline.spec.dlq.enabled is enabled
    assert pipeline.spec.dlq.overflow == "block"


def test_an_unknown_way_to_overflow_is_refused_with_those_there_are(write: Write) -> None:
    with pytest.raises(ConfigError, match="overflow") as raised:
        config.load(write("  dlq: {overflow: explode}\n"))
    assert "drop_oldest" in str(raised.value)


def test_lanes_that_a_sink_cannot_use_are_noted(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.components import Bucket

    (pipeline,) = config.load(write("  sharding: {count: 4}\n"))
    assert notes(pipeline) == []
    monkeypatch.setattr(Bucket, "single_lane", True, raising=False)
    ((what, fix),) = notes(pipeline)
    assert '4 lanes are asked for, but "b" takes all of a batch in one lane' in what
    assert fix
