"""Which sinks move together, and where that puts the pipeline's checkpoint. Spark is not needed to know it."""

from __future__ import annotations

import pytest

from tidemill.config.spec import CommitPolicy
from tidemill.errors import ConfigError
from tidemill.stream.position.commit_policy import Policy, SinkGroup

KAFKA_REQUIRED = {"kafka": True, "redis": False, "files": False}
KEYS = {"p": "p", "kafka": "p:kafka", "redis": "p:redis", "files": "p:files"}


def policy(mode: str, quorum: int | None = None) -> Policy:
    return Policy.of("p", CommitPolicy.model_validate({"mode": mode, "quorum": quorum}), KAFKA_REQUIRED)


def test_all_is_one_group_that_leads() -> None:
    assert policy("all").groups == (SinkGroup("p", ("kafka", "redis", "files"), leads=True, votes=True),)


def test_required_sinks_lead_and_each_optional_one_follows_alone() -> None:
    assert policy("required").groups == (
        SinkGroup("p", ("kafka",), leads=True, votes=True),
        SinkGroup("p:redis", ("redis",), leads=False, votes=False),
        SinkGroup("p:files", ("files",), leads=False, votes=False),
    )


def test_in_a_quorum_every_sink_votes_and_none_leads() -> None:
    groups = policy("quorum", 2).groups
    assert [group.key for group in groups] == ["p:kafka", "p:redis", "p:files"]
    assert all(group.votes and not group.leads for group in groups)


@pytest.mark.parametrize(
    ("mode", "quorum", "offsets", "reached"),
    [
        ("all", None, {"p": 7}, 7),
        ("required", None, {"p": 7, "redis": 0, "files": 9}, 7),
        ("required", None, {"p": 0, "redis": 9, "files": 9}, 0),
        ("quorum", 1, {"kafka": 3, "redis": 9, "files": 5}, 9),
        ("quorum", 2, {"kafka": 3, "redis": 9, "files": 5}, 5),
        ("quorum", 3, {"kafka": 3, "redis": 9, "files": 5}, 3),
        ("quorum", 2, {"kafka": 4, "redis": 4, "files": 0}, 4),
        ("quorum", 2, {"kafka": 4, "redis": 0, "files": 0}, 0),
    ],
)
def test_the_checkpoint_stands_where_enough_sinks_have_been(
    mode: str, quorum: int | None, offsets: dict[str, int], reached: int
) -> None:
    assert policy(mode, quorum).reached({KEYS[name]: offset for name, offset in offsets.items()}) == reached


@pytest.mark.parametrize(
    ("mode", "quorum", "given_up", "goes_on"),
    [
        ("all", None, {"p"}, False),
        ("required", None, {"p"}, False),
        ("required", None, {"redis", "files"}, True),
        ("quorum", 2, {"kafka"}, True),
        ("quorum", 2, {"kafka", "files"}, False),
        ("quorum", 3, {"redis"}, False),
        ("quorum", 1, {"kafka", "redis"}, True),
    ],
)
def test_a_pipeline_goes_on_as_long_as_its_checkpoint_can_move(
    mode: str, quorum: int | None, given_up: set[str], goes_on: bool
) -> None:
    assert policy(mode, quorum).can_go_on({KEYS[name] for name in given_up}) is goes_on


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
        Policy.of("p", CommitPolicy.model_validate(spec), sinks)
    assert raised.value.fix
