from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill import config
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
