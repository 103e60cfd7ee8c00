"""The commit policy: whose receipts let the checkpoint move (invariant 1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from tidemill.config.spec import CommitPolicy
from tidemill.errors import ConfigError
from tidemill.model.delivery import Receipt


@dataclass(frozen=True, slots=True)
class Policy:
    """`required` maps every sink of the pipeline to whether it is marked so."""

    spec: CommitPolicy
    required: Mapping[str, bool]

    def __post_init__(self) -> None:
        mode, quorum, sinks = self.spec.mode, self.spec.quorum, len(self.required)
        if mode == "required" and not any(self.required.values()):
            raise ConfigError(
                "commit_policy is `required`, but no sink is marked required: nothing would have to arrive",
                fix="Set required: true on a sink, or commit_policy: {mode: all}.",
            )
        if mode == "quorum" and (quorum is None or quorum > sinks):
            raise ConfigError(
                f"commit_policy asks for a quorum of {quorum} out of {sinks} sinks",
                fix=f"Set commit_policy.quorum to a number from 1 to {sinks}.",
            )

    def met(self, delivered: Collection[str]) -> bool:
        """`delivered` are the sinks that have the whole batch."""
        match self.spec.mode:
            case "all":
                return all(sink in delivered for sink in self.required)
            case "required":
                return all(sink in delivered for sink, needed in self.required.items() if needed)
            case "quorum":
                return sum(sink in delivered for sink in self.required) >= (self.spec.quorum or 1)
        assert_never(self.spec.mode)


def delivered(receipts: Iterable[Receipt], sinks: Iterable[str], lanes: int) -> set[str]:
    """Sinks with a good receipt from every lane: a batch that one lane failed is not at the sink."""
    good = {(r.sink, r.lane) for r in receipts if r.ok}
    return {sink for sink in sinks if all((sink, lane) in good for lane in range(lanes))}
