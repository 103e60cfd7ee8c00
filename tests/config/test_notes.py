from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import Bucket
from tidemill import config
from tidemill.config.notes import notes
from tidemill.contracts import Capabilities

Write = Callable[..., Path]


def test_lanes_that_no_sink_can_use_are_noted(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    (pipeline,) = config.load(write("  sharding: {count: 4}\n"))
    assert notes(pipeline) == []
    monkeypatch.setattr(Bucket, "capabilities", Capabilities(single_lane=True))
    assert notes(pipeline) == [
        ('4 lanes are asked for, but "b" takes all of a batch in one lane', "Leave the number of lanes out.")
    ]


@pytest.mark.parametrize(
    ("policy", "required", "noted"),
    [
        ("mode: all", True, True),
        ("mode: all", False, True),
        ("mode: required", True, True),
        ("mode: required", False, False),
        ("mode: quorum, quorum: 1", True, False),
    ],
)
def test_a_sink_with_one_lane_is_noted_only_if_it_takes_lanes_from_others(
    write: Write, monkeypatch: pytest.MonkeyPatch, policy: str, required: bool, noted: bool
) -> None:
    monkeypatch.setattr(Bucket, "capabilities", Capabilities(single_lane=True))
    base = PIPELINE.replace("{id: b}", f"{{id: b, required: {str(required).lower()}}}")
    other = "    - {type: barrel, config: {id: other, litres: 3}}\n"
    (pipeline,) = config.load(write(f"{other}  sharding: {{count: 4}}\n  commit_policy: {{{policy}}}\n", base=base))
    assert ["and so do the sinks that move with it" in what for what, _ in notes(pipeline)] == [True] * noted
