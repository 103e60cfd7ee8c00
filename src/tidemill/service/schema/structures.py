"""What processors taught of the structures they give, kept in the schema registry beside the source's own versions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

import orjson

from tidemill.errors import ProcessingError
from tidemill.schema.registry import RegistryPlace
from tidemill.stream.lane.chain import Chain, ChainRun
from tidemill.stream.schema.structures import DerivedStructures, Known, merge

_NAME = "processors.structures"
Result = TypeVar("Result")


class KeptStructures:
    """For all groups of sinks of one pipeline: they learn the same, and may do so at the same time."""

    def __init__(self, place: RegistryPlace) -> None:
        self._place = place
        self._saving = threading.Lock()

    def load(self) -> Known:
        found = self._place.find_registry()
        if found is None:
            return {}
        with closing(found) as registry:
            kept = registry.recall(_NAME)
        return orjson.loads(kept) if kept else {}

    def save(self, known: Known) -> None:
        """Durable when it returns; what another group kept meanwhile stays."""
        with self._saving, closing(self._place.open_registry()) as registry:
            kept = registry.recall(_NAME)
            registry.remember(_NAME, orjson.dumps(merge(orjson.loads(kept) if kept else {}, known)))


class PrivateStructures:
    """For who must not teach the pipeline: begins with what is kept, and keeps nothing."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def load(self) -> Known:
        return self._known

    def save(self, known: Known) -> None:
        self._known = merge(self._known, known)


def run_until_known(
    chain: Chain, structures: DerivedStructures, take: Callable[[ChainRun], Result]
) -> tuple[ChainRun, Result]:
    """The pass in which the chain learned nothing, and what `take` made of it. `take` sends all its events through the
    pass that it is given, and is called again after one that learned: blocks before that lack the new columns.
    `ProcessingError` if a processor fails on an event, whatever its on_error says of dead letters."""
    while True:
        run = chain.begin(structures.load())
        made = take(run)
        for offset, failure in run.failures.items():
            raise ProcessingError({offset: failure.reason}, where=f'processor "{failure.processor}"')
        if not run.learned:
            return run, made
        structures.save(run.learned)
