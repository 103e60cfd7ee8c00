"""Where the latency bench runs: Spark in this process's Java with the log in a folder, or a standalone cluster of two
workers on two other (virtual) hosts with the log on S3."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from tidemill.lab.servers.seaweedfs import SeaweedFS
from tidemill.lab.servers.spark import Cluster, ClusterHost
from tidemill.lab.servers.virtual_host import VirtualHost


@dataclass(frozen=True, slots=True)
class BenchPlace:
    """`address` is where lanes reach servers on this host."""

    label: str = "one machine"
    master: str = "local[3]"
    conf: Mapping[str, str] = field(default_factory=lambda: {"spark.default.parallelism": "2"})
    address: str = "127.0.0.1"
    store: SeaweedFS | None = None

    @classmethod
    def cluster(cls, stack: ExitStack) -> Self:
        """Master, driver, S3 and whatever else this process starts stay on this host."""
        one, other = (stack.enter_context(VirtualHost(number)) for number in (0, 1))
        here = ClusterHost(one.near)
        store = stack.enter_context(SeaweedFS(one.near))
        there = [ClusterHost(host.far, host.enter) for host in (one, other)]
        # Each worker has one core more than a lane needs; two cores of the machine are shared by all of them.
        spark = stack.enter_context(Cluster(host=here, workers=there))
        memory = {"spark.driver.memory": "512m", "spark.executor.memory": "512m"}
        label = "a standalone cluster of two workers, the log on S3"
        return cls(label, spark.url, memory | {"spark.driver.host": one.near}, one.near, store)

    def log_uri(self, name: str) -> str | None:
        """None: the log is in the state directory, as by default."""
        return self.store.log_uri("bench", name) if self.store is not None else None
