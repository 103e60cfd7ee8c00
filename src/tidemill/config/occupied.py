"""Two sinks that write to one place, in one pipeline or in two of a run: refused before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from tidemill.config.document import Document
from tidemill.config.problem import Problem
from tidemill.config.spec import PipelineSpec
from tidemill.contracts import Place

Loaded = tuple[Document, str, PipelineSpec]
"""A document, and the name and spec of its pipeline."""


def clashes(pipelines: Sequence[Loaded]) -> list[Problem]:
    """One problem for each sink that occupies what an earlier one has."""
    sinks = [
        (document, name, index, sink.config)
        for document, name, spec in pipelines
        for index, sink in enumerate(spec.sinks)
    ]
    if len(sinks) < 2:
        return []
    places = [config.occupies() for _, _, _, config in sinks]
    found: dict[int, Problem] = {}
    for first, second in combinations(range(len(sinks)), 2):
        (there, one, at, earlier), (document, _, index, config) = sinks[first], sinks[second]
        place = _common(places[first], places[second], together=there is document)
        if place is not None and second not in found:
            line = there.line(("spec", "sinks", at, "config"))
            owner = f'sink "{earlier.id}"' + ("" if there is document else f' of pipeline "{one}"')
            found[second] = document.problem(
                ("spec", "sinks", index, "config"),
                f'sink "{config.id}" writes to {place}, which {owner} has',
                f"That sink is in {there.file}:{line}. Each would overwrite, repeat or refuse what the other writes: "
                "give each a place of its own.",
            )
    return list(found.values())


def _common(first: Sequence[Place], second: Sequence[Place], *, together: bool) -> str | None:
    """Across pipelines a template may stand for different names: their sources are not the same."""
    for a in first:
        for b in second:
            alone = a.per_pipeline or b.per_pipeline or "${" in a.address or "${" in b.address
            if a.overlaps(b) and (together or not alone):
                return b.address
    return None
