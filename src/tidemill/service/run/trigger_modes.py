"""Which trigger each pipeline of a session runs with: lanes that stand hold slots, of which some sessions have few.

A pipeline that names no mode runs in real time where its lanes find slots, and in micro-batches where not, which any
number of pipelines can share (ADR 75). One that asks for real time gets it, or an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tidemill.config import Pipeline
from tidemill.config.spec import Spark, Trigger
from tidemill.errors import EnvironmentProblem
from tidemill.stream.position.commit_policy import policy_of
from tidemill.telemetry import events


def standing_lanes(pipeline: Pipeline, trigger: Trigger | None = None) -> int:
    """Slots that the pipeline holds for as long as it runs: in real time every lane of every group stands."""
    from tidemill.stream.batch.ordering import single_lane

    if not (trigger or pipeline.spec.trigger).real_time:
        return 0
    types = {sink.config.id: sink.type for sink in pipeline.spec.sinks}
    asked = pipeline.spec.lanes or 1
    groups = policy_of(pipeline).groups
    return sum(1 if single_lane(types[sink] for sink in group.sinks) else asked for group in groups)


def choose_triggers(
    pipelines: Sequence[Pipeline], master: str, held: int = 0, *, speculates: bool = False
) -> Mapping[str, Trigger]:
    """By pipeline, for a session at `master` of whose slots lanes of others hold some already. Those that ask for
    real time come first, then those that name no mode, in their order. One slot stays free for other jobs. A session
    that `speculates`, whichever document says so, starts a second task for each that stands, and ends the first one
    when the second returns: it has no real time.

    `EnvironmentProblem` where those that ask for it would hold all: the session was made before one of them was
    added, or somebody chose its size; or where it speculates.
    """
    slots, need = _slots(master), 0
    speculates = speculates or any(pipeline.spec.spark.speculates for pipeline in pipelines)
    triggers = {pipeline.name: pipeline.spec.trigger for pipeline in pipelines}
    for pipeline in sorted(pipelines, key=lambda each: not each.spec.trigger.chosen):
        trigger, lanes = pipeline.spec.trigger, standing_lanes(pipeline)
        fits = slots is None or held + need + lanes < slots
        if lanes and speculates and trigger.chosen:
            raise _refuse_speculation(pipeline, master)
        if lanes and not trigger.chosen and (not fits or speculates):
            triggers[pipeline.name] = trigger.model_copy(update={"mode": "micro_batch"})
        else:
            need += lanes
        if lanes and not fits and trigger.chosen:
            raise _refusal(pipelines, master, held + need, slots)
    return triggers


def report_turns(
    pipelines: Sequence[Pipeline], triggers: Mapping[str, Trigger], master: str, *, speculates: bool = False
) -> None:
    """One event for each pipeline that would be in real time, had the session slots for it."""
    speculates = speculates or any(pipeline.spec.spark.speculates for pipeline in pipelines)
    for pipeline in pipelines:
        if pipeline.spec.trigger.real_time and not triggers[pipeline.name].real_time:
            events.emit(
                "stream.no_real_time", pipeline=pipeline.name, master=master, lanes=standing_lanes(pipeline),
                reason="spark.speculation is on" if speculates else "Spark has no slot to spare",
                fix="It delivers in micro-batches. Leave spark.master out or give it more slots for real time; "
                "trigger.mode micro_batch says that this is meant.",
            )  # fmt: skip


def _slots(master: str) -> int | None:
    """None for a cluster, which may grow."""
    if master.startswith("local[*"):
        return len(os.sched_getaffinity(0))
    return Spark(master=master).slots


def _refuse_speculation(pipeline: Pipeline, master: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f'pipeline "{pipeline.name}" asks for trigger.mode {pipeline.spec.trigger.mode}, but its session has '
        "spark.speculation: Spark would start a second task for each lane that stands",
        where=f"master {master}; {pipeline.file}",
        fix="Leave spark.speculation out of the documents that share this session, or run this one in a process of its "
        "own.",
    )


def _refusal(pipelines: Sequence[Pipeline], master: str, need: int, slots: int | None) -> EnvironmentProblem:
    names = ", ".join(each.name for each in pipelines if each.spec.trigger.chosen and standing_lanes(each))
    return EnvironmentProblem(
        f"pipelines in real time would hold {need} of Spark's {slots} slots, and one must stay free for other jobs",
        where=f"master {master}; {names}",
        fix=f"Start this process again with all of them known, give spark.master local[{need + 1}] or more, or use "
        "trigger.mode micro_batch for some.",
    )
