"""The commit policy: which sinks move together, and how far the pipeline is when they are where they are (ADR 12).

A group of sinks has one position in the log. Inside a group every sink takes every batch; between groups nothing waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import assert_never

from tidemill.config.pipeline import Pipeline
from tidemill.config.spec import CommitPolicy
from tidemill.errors import ConfigError
from tidemill.model.delivery import key_of
from tidemill.model.position import Offset


@dataclass(frozen=True, slots=True)
class SinkGroup:
    """`key` names its position in the checkpoint store.

    The group that `leads` has the pipeline's own checkpoint: the pipeline waits for it and stops with it. A group that
    `votes` counts for the checkpoint; any other only follows, at its own pace.
    """

    key: str
    sinks: tuple[str, ...]
    leads: bool
    votes: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """The groups of a pipeline, the leading one first, and how many voting ones must have an event (invariant 1)."""

    pipeline: str
    groups: tuple[SinkGroup, ...]
    quorum: int

    @classmethod
    def of(cls, pipeline: str, spec: CommitPolicy, required: Mapping[str, bool]) -> Policy:
        """`required` maps every sink, in the document's order, to whether it is marked so."""
        sinks = tuple(required)
        match spec.mode:
            case "all":
                return cls(pipeline, (SinkGroup(pipeline, sinks, leads=True, votes=True),), 1)
            case "required":
                leading = tuple(sink for sink in sinks if required[sink])
                if not leading:
                    raise ConfigError(
                        "commit_policy is `required`, but no sink is marked required: nothing would have to arrive",
                        fix="Set required: true on a sink, or commit_policy: {mode: all}.",
                    )
                alone = (sink for sink in sinks if not required[sink])
                followers = (SinkGroup(key_of(pipeline, sink), (sink,), leads=False, votes=False) for sink in alone)
                return cls(pipeline, (SinkGroup(pipeline, leading, leads=True, votes=True), *followers), 1)
            case "quorum":
                if spec.quorum is None or spec.quorum > len(sinks):
                    raise ConfigError(
                        f"commit_policy asks for a quorum of {spec.quorum} out of {len(sinks)} sinks",
                        fix=f"Set commit_policy.quorum to a number from 1 to {len(sinks)}.",
                    )
                voters = (SinkGroup(key_of(pipeline, sink), (sink,), leads=False, votes=True) for sink in sinks)
                return cls(pipeline, tuple(voters), spec.quorum)
        assert_never(spec.mode)

    def group_of(self, sink: str) -> SinkGroup:
        return next(group for group in self.groups if sink in group.sinks)

    def reached(self, offsets: Mapping[str, Offset]) -> Offset:
        """Where the pipeline's checkpoint may stand when the groups, by key, stand there."""
        return sorted((offsets[group.key] for group in self.groups if group.votes), reverse=True)[self.quorum - 1]

    def can_go_on(self, given_up: Collection[str]) -> bool:
        """Whether the checkpoint can still move when the groups with these keys have given up."""
        return sum(group.votes and group.key not in given_up for group in self.groups) >= self.quorum


def policy_of(pipeline: Pipeline) -> Policy:
    """As the document says."""
    required = {sink.config.id: sink.config.required for sink in pipeline.spec.sinks}
    return Policy.of(pipeline.name, pipeline.spec.commit_policy, required)
