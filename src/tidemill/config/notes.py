"""What is right in a pipeline document and yet not what one might expect; `validate` and `doctor` say it."""

from __future__ import annotations

from tidemill import registry
from tidemill.config.pipeline import Pipeline
from tidemill.config.spec.sink import SinkSpec


def notes(pipeline: Pipeline) -> list[tuple[str, str]]:
    """(what, what to do about it) pairs."""
    spec, lanes = pipeline.spec, pipeline.spec.lanes or 1
    single = [s for s in spec.sinks if registry.load("sinks", s.type).capabilities.single_lane]
    # Sinks that move together share their lanes; one that moves by itself takes none from the others.
    moving = [s for s in spec.sinks if _moves_with_others(spec.commit_policy.mode, s)]
    slowing = [s for s in single if s in moving]
    if lanes > 1 and slowing and len(slowing) < len(moving):
        what = f"{_ask(lanes, slowing)}, and so do the sinks that move with it"
        fix = "Make it `required: false` if the others are to use their lanes, or leave the number of lanes out."
        return [(what, fix)]
    if lanes > 1 and len(single) == len(spec.sinks):
        return [(_ask(lanes, single), "Leave the number of lanes out.")]
    return []


def _ask(lanes: int, sinks: list[SinkSpec]) -> str:
    named = ", ".join(f'"{sink.config.id}"' for sink in sinks)
    return f"{lanes} lanes are asked for, but {named} takes all of a batch in one lane"


def _moves_with_others(mode: str, sink: SinkSpec) -> bool:
    """As `stream/position/commit_policy.py` groups them."""
    return mode == "all" or (mode == "required" and sink.config.required)
