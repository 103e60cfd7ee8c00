"""What is right in a pipeline document and yet not what one might expect; `validate` and `doctor` say it."""

from __future__ import annotations

from tidemill import registry
from tidemill.config.pipeline import Pipeline


def notes(pipeline: Pipeline) -> list[tuple[str, str]]:
    """(what, what to do about it) pairs."""
    found = []
    alone = [
        str(getattr(sink.config, "id", sink.type))
        for sink in pipeline.spec.sinks
        if getattr(registry.load("sinks", sink.type), "single_lane", False)
    ]
    lanes = pipeline.spec.lanes or 1
    if alone and lanes > 1:
        named = ", ".join(f'"{sink}"' for sink in alone)
        found.append(
            (
                f"{lanes} lanes are asked for, but {named} takes all of a batch in one lane, and so do the sinks that "
                "move with it",
                "Make it `required: false` if the others are to use their lanes, or leave the number of lanes out.",
            )
        )
    return found
