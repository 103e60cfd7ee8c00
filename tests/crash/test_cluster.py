"""A pipeline on a standalone Spark cluster of two workers, with its log on S3: executors, their Python workers and the
driver are killed, an executor stands still, and a worker on another host is cut off while the rest goes on, or while
the driver is started again.

Afterwards the delivered files, replayed, are the source's tables row by row, and no event is there twice.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.actors import command_of, descendants, wait_for
from tests.crash.harness import SourceHarness
from tests.crash.test_run import MODES, Stage, staged
from tests.crash.workload import Load
from tests.support.other_hosts import other_hosts
from tests.support.seed import choose, dice
from tidemill.lab.servers.seaweedfs import SeaweedFS
from tidemill.lab.servers.spark import Cluster, ClusterHost
from tidemill.stream.trigger.channel import DEAD_SECONDS

_BUCKET = "cluster"


@pytest.fixture(scope="module")
def store() -> Iterator[SeaweedFS]:
    with SeaweedFS() as server:
        yield server


def spec_of(cluster: Cluster, log: str, driver: str, mode: str, **conf: str) -> dict[str, Any]:
    memory = {"spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    spark = {"master": cluster.url, "lanes": 2, "conf": memory | {"spark.driver.host": driver} | conf}
    return {"trigger": {"mode": mode}, "spark": spark, "log": {"uri": log}}


def executors(cluster: Cluster) -> list[int]:
    below = [pid for worker in cluster.workers for pid in descendants(worker)]
    return [pid for pid in below if "CoarseGrainedExecutorBackend" in command_of(pid)]


def lanes(cluster: Cluster) -> list[int]:
    """The Python processes of executors."""
    return [pid for executor in executors(cluster) for pid in descendants(executor)]


def one_of(find: Callable[[Cluster], list[int]], cluster: Cluster, stage: Stage) -> int:
    found: list[int] = []

    def there() -> bool:
        stage.run.keep_running()
        found[:] = find(cluster)
        return bool(found)

    wait_for(there, 120, lambda: f"the cluster has no executor:\n{stage.run.output[-3000:]}")
    return dice("cluster", find.__name__).choice(found)


@pytest.mark.parametrize("mode", choose("cluster mode", MODES))
def test_executors_and_the_driver_of_a_cluster_killed_or_frozen_cost_no_event_and_double_none(
    source: SourceHarness, evidence: Path, store: SeaweedFS, mode: str, account: Callable[..., None]
) -> None:
    log = store.log_uri(_BUCKET, "killed")
    with (
        Cluster(workers=(ClusterHost(), ClusterHost()), directory=evidence / "cluster") as cluster,
        staged(source, evidence, **spec_of(cluster, log, "127.0.0.1", mode)) as stage,
    ):
        stage.run.begin(source)
        with Load(source, seed=5, pause=0.1, rows_per_second=400).running():
            stage.wait_for_progress()
            for find in (lanes, executors):
                os.kill(one_of(find, cluster, stage), signal.SIGKILL)
                stage.wait_for_progress()
            frozen = one_of(executors, cluster, stage)
            os.kill(frozen, signal.SIGSTOP)
            time.sleep(DEAD_SECONDS + 5)  # so long it may hold up its lanes in real time; then others take their place
            os.kill(frozen, signal.SIGCONT)
            stage.wait_for_progress()
            stage.kill("driver", dice("cluster driver"))
            stage.wait_for_progress()
        events = stage.finish()
        account(mode=mode, events=events, kills="lane, executor, driver", frozen=1, duplicates=0)


@pytest.mark.parametrize("mode", choose("partition mode", MODES))
def test_a_worker_that_is_cut_off_holds_up_nobody_for_long_and_doubles_nothing_when_it_is_back(
    source: SourceHarness, evidence: Path, mode: str, account: Callable[..., None]
) -> None:
    """Both workers are on other hosts than the driver, which is killed while one of them is cut off."""
    with other_hosts(2) as (stays, other), SeaweedFS(stays.near) as store:
        log = store.log_uri(_BUCKET, "cut")
        here, there = ClusterHost(stays.near), [ClusterHost(host.far, host.enter) for host in (stays, other)]
        # Two minutes without a heartbeat is Spark's own measure; a test need not wait for that.
        patience = {"spark.network.timeout": "20s", "spark.network.timeoutInterval": "5s"}
        patience["spark.executor.heartbeatInterval"] = "4s"
        with (
            Cluster(host=here, workers=there, directory=evidence / "cluster") as cluster,
            staged(source, evidence, **spec_of(cluster, log, stays.near, mode, **patience)) as stage,
        ):
            stage.run.begin(source)
            with Load(source, seed=6, pause=0.1, rows_per_second=300).running():
                stage.wait_for_progress()
                wait_for(lambda: len(executors(cluster)) == 2, 60, "one of the workers has no executor")
                other.cut()
                time.sleep(2)  # what was on its way has arrived
                stage.wait_for_progress()  # without the other host
                stage.kill("driver", dice("cut driver"))
                stage.wait_for_progress()
                other.join()
                stage.wait_for_progress()
            events = stage.finish()
            account(mode=mode, events=events, cut=1, kills="driver", duplicates=0)
