from __future__ import annotations

import pytest

from tidemill.config.spec import CommitPolicy
from tidemill.errors import ConfigError
from tidemill.model.delivery import Receipt
from tidemill.stream.policy import Policy, delivered

KAFKA_REQUIRED = {"kafka": True, "redis": False, "files": False}


@pytest.mark.parametrize(
    ("mode", "quorum", "have", "met"),
    [
        ("all", None, {"kafka", "redis", "files"}, True),
        ("all", None, {"kafka", "redis"}, False),
        ("all", None, set(), False),
        ("required", None, {"kafka"}, True),
        ("required", None, {"redis", "files"}, False),
        ("quorum", 2, {"redis", "files"}, True),
        ("quorum", 2, {"kafka", "files"}, True),
        ("quorum", 2, {"kafka"}, False),
        ("quorum", 1, set(), False),
        ("quorum", 1, {"stranger"}, False),
    ],
)
def test_the_checkpoint_moves_when_the_right_sinks_have_the_batch(
    mode: str, quorum: int | None, have: set[str], met: bool
) -> None:
    policy = Policy(CommitPolicy.model_validate({"mode": mode, "quorum": quorum}), KAFKA_REQUIRED)
    assert policy.met(have) is met


@pytest.mark.parametrize(
    ("spec", "sinks"),
    [
        ({"mode": "required"}, {"a": False, "b": False}),
        ({"mode": "quorum"}, {"a": True}),
        ({"mode": "quorum", "quorum": 2}, {"a": True}),
    ],
)
def test_a_policy_that_can_never_mean_what_it_says_is_refused(spec: dict[str, object], sinks: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match="commit_policy") as raised:
        Policy(CommitPolicy.model_validate(spec), sinks)
    assert raised.value.fix


def test_a_sink_counts_only_with_a_good_receipt_from_every_lane() -> None:
    receipts = [
        Receipt("a", 0),
        Receipt("a", 1),
        Receipt("b", 0),
        Receipt("b", 1, error="full"),
        Receipt("c", 0),
    ]
    assert delivered(receipts, ["a", "b", "c"], lanes=2) == {"a"}
