"""The one Spark session that all pipelines of a process share: made from what their documents ask for."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.config import Pipeline
from tidemill.errors import ConfigError
from tidemill.stream.policy import policy_of
from tidemill.telemetry import events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_session(pipelines: Sequence[Pipeline], said: Path) -> SparkSession:
    """Returns when Spark is there; its workers get warm beside. `said` is the file for what Java writes."""
    from tidemill.sinks import stdout
    from tidemill.stream.session import create_session

    check_agreement(pipelines)
    conf = {key: value for pipeline in pipelines for key, value in pipeline.spec.spark.conf.items()}
    beside = sum(len(policy_of(pipeline).groups) - 1 for pipeline in pipelines)
    master, more = slots(pipelines[0].spec.spark.master, beside)
    stdout.announce()
    spark = create_session("tidemill", master=master, conf=more | conf, said=said)
    # While capture connects and the queries start; a stop must not have to wait for it.
    threading.Thread(target=_warm, args=(spark,), name="warm-up").start()
    return spark


def check_agreement(pipelines: Sequence[Pipeline]) -> None:
    """`ConfigError` where documents ask for different clusters or settings: a session has one of each."""
    masters = sorted({pipeline.spec.spark.master for pipeline in pipelines})
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


def slots(master: str, beside: int) -> tuple[str, dict[str, str]]:
    """The default master, with a slot more for each sink that moves by itself: it mostly waits for its destination, and
    must not take the core of a sink that the pipeline waits for. A master that somebody chose stays as it is."""
    if master != "local[*]" or not beside:
        return master, {}
    cores = len(os.sched_getaffinity(0))
    return f"local[{cores + beside}]", {"spark.default.parallelism": str(cores)}


def _warm(spark: SparkSession) -> None:
    from tidemill.stream.session import warm_up

    try:
        warm_up(spark)
    except Exception as error:  # noqa: BLE001  a session stopped meanwhile; the first batch only starts colder
        events.emit("stream.not_warmed", reason="the session ended before", kind=type(error).__name__)
