"""The streams of a pipeline together: those of all its groups of sinks, by the key of each group."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tidemill.contracts.schema_change_store import StoredChange
from tidemill.errors import ErrorData
from tidemill.model.position import Offset
from tidemill.service.run.status import SinkStatus
from tidemill.service.run.stream_group import GroupRun

STANDSTILL_SECONDS = 30.0
"""That a pipeline whose capture failed waits for sinks of which none takes anything."""


class StreamGroups(dict[str, GroupRun]):
    """In the order of the policy: the group that leads comes first."""

    _moved: tuple[int, float] = (-1, 0.0)  # the groups' offsets together, and since when they are that

    @property
    def given_up(self) -> set[str]:
        return {key for key, group in self.items() if group.given_up}

    @property
    def lanes_stand(self) -> bool:
        return all(group.lanes_stand for group in self.values())

    @property
    def last_error(self) -> ErrorData:
        """Of those that the checkpoint waits for."""
        return next((each.last_error for each in self.values() if each.last_error and each.group.votes), ErrorData())

    @property
    def waiting(self) -> list[StoredChange]:
        """Schema changes that wait for an operator."""
        return [group.waiting for group in self.values() if group.waiting is not None]

    def sinks(self, tail: Offset, order: Sequence[str]) -> tuple[SinkStatus, ...]:
        found = {sink.id: sink for group in self.values() for sink in group.sinks(tail)}
        return tuple(found[sink] for sink in order)

    def of_sink(self, sink: str) -> GroupRun:
        return next(group for group in self.values() if sink in group.group.sinks)

    def have_delivered(self, tail: Offset) -> bool:
        """Or nobody delivers any more. Not waited for are sinks that fail, unless the pipeline needs them, and those
        at a schema change on which nobody has decided: that may take days."""
        waiting = [each for each in self.values() if each.offset < tail and each.running and each.waiting is None]
        return all(each.failing and not each.group.leads for each in waiting)

    def await_standstill(self) -> None:
        """From here on time counts for `stand_still`."""
        self._moved = (-1, time.monotonic())

    def stand_still(self, tail: Offset) -> bool:
        """Every sink has everything, or those that have not fail and took nothing for a while."""
        waiting = [group for group in self.values() if group.offset < tail and not group.given_up]
        reached = sum(group.offset for group in self.values())
        if reached != self._moved[0]:
            self._moved = (reached, time.monotonic())
        standing = time.monotonic() - self._moved[1] >= STANDSTILL_SECONDS
        return all(group.failing and standing for group in waiting)

    def begin_again(self) -> None:
        for group in self.values():
            group.begin_again()

    def ask_to_stop(self) -> None:
        for group in self.values():
            group.ask_to_stop()

    def stop(self, seconds: float) -> None:
        """After the batches under way, or after so long."""
        self.ask_to_stop()
        deadline = time.monotonic() + seconds
        for group in self.values():
            group.stop(max(0.0, deadline - time.monotonic()))
