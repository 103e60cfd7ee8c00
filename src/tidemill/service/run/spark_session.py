"""The one Spark session that all pipelines of a process share: made from what their documents ask for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.config import Pipeline
from tidemill.config.spec import Spark
from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.service.run.trigger_modes import choose_triggers, standing_lanes
from tidemill.stream.position.commit_policy import policy_of
from tidemill.stream.spark.gateway import JAVA_PORT
from tidemill.stream.spark.settings import AMPLE_SLOTS, session_settings
from tidemill.telemetry import events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.stream.spark.gateway import StartedJava

_NAME = "tidemill"


def begin_java(pipelines: Sequence[Pipeline]) -> StartedJava | None:
    """Starts Spark's Java process for pipelines that are all there will be, while the rest is imported and checked.
    None where there is one already. `ConfigError` as `check_agreement`."""
    from tidemill.stream.spark.gateway import StartedJava

    if JAVA_PORT in os.environ:
        return None
    check_agreement(pipelines)
    master, conf = choose_master(pipelines)
    lanes = _lanes(pipelines, master)
    return StartedJava(
        session_settings(_NAME, master, conf, standing=max(lanes) if all(lanes) else 0), log_of(pipelines[0])
    )


def open_session(pipelines: Sequence[Pipeline], said: Path, java: StartedJava | None = None) -> SparkSession:
    """Returns when Spark is there; its workers get warm beside. `said` is the file for what Java writes. `java` is of
    `begin_java` for the same pipelines."""
    from tidemill.sinks import stdout
    from tidemill.stream.spark.class_archive import begin_archive
    from tidemill.stream.spark.session import create_session

    check_agreement(pipelines)
    master, conf = choose_master(pipelines)
    stdout.announce()
    spark = create_session(_NAME, master=master, conf=conf, said=said, java=java)
    begin_archive(spark)
    # While capture connects and the queries start; a stop must not have to wait for it.
    threading.Thread(target=_warm, args=(spark, _first_workers(pipelines, master)), name="warm-up").start()
    return spark


def log_of(first: Pipeline) -> Path:
    """What Spark's Java and the Python processes under it say."""
    return first.state_path / "spark.log"


def choose_master(pipelines: Sequence[Pipeline]) -> tuple[str, dict[str, str]]:
    """The master, and settings."""
    conf = {key: value for pipeline in pipelines for key, value in pipeline.spec.spark.conf.items()}
    beside = sum(len(policy_of(pipeline).groups) - 1 for pipeline in pipelines)
    ample = any(pipeline.spec.trigger.real_time for pipeline in pipelines)
    master, more = slots(next(iter(_masters(pipelines)), Spark().master), beside, ample=ample)
    return master, more | conf


def check_agreement(pipelines: Sequence[Pipeline]) -> None:
    """`ConfigError` where documents ask for different clusters or settings: a session has one of each."""
    masters = _masters(pipelines)
    if len(masters) > 1:
        raise ConfigError(
            f"the pipelines name different Spark masters: {', '.join(masters)}",
            fix="Run them with one `tidemill run` for each master.",
        )
    conf: dict[str, str] = {}
    for pipeline in pipelines:
        for key, value in pipeline.spec.spark.conf.items():
            if conf.setdefault(key, value) != value:
                raise ConfigError(
                    f"the pipelines set {key} to {conf[key]} and to {value}",
                    where=f"pipeline {pipeline.name}",
                    fix="They share one Spark session: agree on a value, or run them in processes of their own.",
                )


def _masters(pipelines: Sequence[Pipeline]) -> list[str]:
    """Those that documents name; who names none takes what the others have."""
    chosen = (pipeline.spec.spark for pipeline in pipelines)
    return sorted({spark.master for spark in chosen if "master" in spark.model_fields_set})


def slots(master: str, beside: int = 0, *, ample: bool = False) -> tuple[str, dict[str, str]]:
    """The default master, with slots for whoever mostly waits: for the `beside` sinks that move by themselves, or,
    `ample`, for every lane that will ever stand. They are but a number here; of micro-batches alone more would run at
    once, each in a Python worker of its own. A master that somebody chose stays as it is."""
    if master != Spark().master or not (beside or ample):
        return master, {}
    cores = len(os.sched_getaffinity(0))
    # Spark would start a thread for each slot, which only carries messages between its parts.
    conf = {"spark.default.parallelism": str(cores), "spark.rpc.netty.dispatcher.numThreads": str(max(2, cores))}
    return f"local[{AMPLE_SLOTS if ample else cores + beside}]", conf


def _lanes(pipelines: Sequence[Pipeline], master: str) -> list[int]:
    """That stand, of each; 0 where it has micro-batches."""
    triggers = choose_triggers(pipelines, master)
    return [standing_lanes(pipeline, triggers[pipeline.name]) for pipeline in pipelines]


def _first_workers(pipelines: Sequence[Pipeline], master: str) -> int | None:
    """Workers that the first batches take: None for one of each core. Not all of the pipelines need start: whether
    those that do find their slots is said then."""
    with suppress(EnvironmentProblem):
        lanes = _lanes(pipelines, master)
        return sum(lanes) if all(lanes) else None
    return None


def _warm(spark: SparkSession, most: int | None) -> None:
    from tidemill.stream.spark.session import warm_up

    began = time.monotonic()
    try:
        warm_up(spark, most)
        events.emit("stream.workers_started", seconds=round(time.monotonic() - began, 2))
    except Exception as error:  # noqa: BLE001  a session stopped meanwhile; the first batch only starts colder
        events.emit("stream.not_warmed", reason="the session ended before", kind=type(error).__name__)
