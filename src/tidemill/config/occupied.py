"""Two sinks that write to one place, in one pipeline or in two of a run: refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from tidemill.config.document import Document
from tidemill.config.problem import Path, Problem
from tidemill.config.spec import PipelineSpec
from tidemill.config.spec.sink import SinkSpec
from tidemill.contracts import Place

Loaded = tuple[Document, str, PipelineSpec]
"""A document, and the name and spec of its pipeline."""


def clashes(pipelines: Sequence[Loaded]) -> list[Problem]:
    """One problem for each sink that occupies what an earlier one has."""
    sinks = [(document, name, at, sink.config) for document, name, spec in pipelines for at, sink in _sinks(spec)]
    if len(sinks) < 2:
        return []
    places = [config.occupies() for _, _, _, config in sinks]
    found: dict[int, Problem] = {}
    for first, second in combinations(range(len(sinks)), 2):
        (there, one, at, earlier), (document, _, path, config) = sinks[first], sinks[second]
        place = _common(places[first], places[second], together=there is document)
        if place is not None and second not in found:
            line = there.line(at)
            owner = f'sink "{earlier.id}"' + ("" if there is document else f' of pipeline "{one}"')
            found[second] = document.problem(
                path,
                f'sink "{config.id}" writes to {place}, which {owner} has',
                f"That sink is in {there.file}:{line}. Each would overwrite, repeat or refuse what the other writes: "
                "give each a place of its own.",
            )
    return list(found.values())


def _sinks(spec: PipelineSpec) -> Iterator[tuple[Path, SinkSpec]]:
    """Each with the place of its settings."""
    for index, sink in enumerate(spec.sinks):
        yield ("spec", "sinks", index, "config"), sink
    if spec.schema_sensing.drift.sink is not None:
        yield ("spec", "schema_sensing", "drift", "sink", "config"), spec.schema_sensing.drift.sink


def _common(first: Sequence[Place], second: Sequence[Place], *, together: bool) -> str | None:
    """Across pipelines a template may stand for different names: their sources are not the same."""
    for a in first:
        for b in second:
            alone = a.per_pipeline or b.per_pipeline or "${" in a.address or "${" in b.address
            if a.overlaps(b) and (together or not alone):
                return b.address
    return None
