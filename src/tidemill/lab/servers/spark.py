"""A standalone Spark cluster, from the pyspark package: a master and its workers, by default on 127.0.0.1, gone when it
is closed.

with Cluster() as cluster:
    create_session("name", master=cluster.url)
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.process import free_ports


@dataclass(frozen=True, slots=True)
class ClusterHost:
    """Where a process of the cluster runs. `enter` is a command that runs another one there."""

    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


_LOOPBACK = ClusterHost()


class Cluster:
    """The master is on `host`; `cores` and `memory` are what each worker offers. The processes' output is in
    `directory`."""

    def __init__(
        self, *, host: ClusterHost = _LOOPBACK, workers: Sequence[ClusterHost] = (_LOOPBACK,), cores: int = 2,
        memory: str = "1g", directory: Path | None = None,
    ) -> None:  # fmt: skip
        self.port = 0
        self.directory = directory or Path(tempfile.mkdtemp(prefix="tidemill-spark-"))
        self._keep = directory is not None
        self._host, self._workers, self._cores = host, workers, cores
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://{self._host.address}:{self.port}"

    def start(self, timeout: float = 120) -> Cluster:
        """Returns once the master knows the workers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port, web, *worker_webs = free_ports(2 + len(self._workers))
        self._launch(
            "master", self._host, "org.apache.spark.deploy.master.Master",
            "--host", self._host.address, "--port", str(self.port), "--webui-port", str(web),
        )  # fmt: skip
        self._await("master", "I have been elected leader", timeout)
        for number, (host, worker_web) in enumerate(zip(self._workers, worker_webs, strict=True), 1):
            self._launch(
                f"worker-{number}", host, "org.apache.spark.deploy.worker.Worker", self.url,
                "--host", host.address, "--webui-port", str(worker_web), "--cores", str(self._cores),
                "--memory", self._memory, "--work-dir", str(self.directory / "work"),
            )  # fmt: skip
            self._await(f"worker-{number}", "Successfully registered with master", timeout)
        return self

    @property
    def workers(self) -> list[int]:
        """Their process ids. An executor is a child of its worker."""
        return [process.pid for process in self._processes[1:]]

    def close(self) -> None:
        """Workers first: they end their executors."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Cluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _launch(self, name: str, host: ClusterHost, *command: str) -> None:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise EnvironmentProblem("pyspark is not installed", fix="Run: pip install tidemill")
        home = Path(spec.origin).parent
        settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": host.address, "PYSPARK_PYTHON": sys.executable}
        with (self.directory / f"{name}.log").open("wb") as log:
            # exec: spark-class replaces its shell by Java, so that the id is Java's own.
            self._processes.append(
                subprocess.Popen(
                    [*host.enter, str(home / "bin" / "spark-class"), *command],
                    env=os.environ | settings,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.directory,
                    start_new_session=True,  # Ctrl-C in the terminal is for the driver, which closes the cluster
                )
            )

    def _await(self, name: str, text: str, timeout: float) -> None:
        log = self.directory / f"{name}.log"
        deadline = time.monotonic() + timeout
        while text not in log.read_text(errors="replace"):
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise EnvironmentProblem(f"the Spark {name} did not start", where=str(log), fix=tail)
            time.sleep(0.05)
