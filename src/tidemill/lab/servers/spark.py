"""A standalone Spark cluster on 127.0.0.1, from the pyspark package: one master, one worker, gone when it is closed.

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
from pathlib import Path
from types import TracebackType

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.process import free_ports


class Cluster:
    """`cores` are what the worker offers. Its processes' output is in `directory`."""

    def __init__(self, *, cores: int = 2, memory: str = "1g", directory: Path | None = None) -> None:
        self.port = 0
        self.directory = directory or Path(tempfile.mkdtemp(prefix="tidemill-spark-"))
        self._keep = directory is not None
        self._cores = cores
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, timeout: float = 120) -> Cluster:
        """Returns once the master knows the worker."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port, web, worker_web = free_ports(3)
        self._launch(
            "master", "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(web),
        )  # fmt: skip
        self._await("master", "I have been elected leader", timeout)
        self._launch(
            "worker", "org.apache.spark.deploy.worker.Worker", self.url,
            "--host", "127.0.0.1", "--webui-port", str(worker_web), "--cores", str(self._cores),
            "--memory", self._memory, "--work-dir", str(self.directory / "work"),
        )  # fmt: skip
        self._await("worker", "Successfully registered with master", timeout)
        return self

    def close(self) -> None:
        """The worker first: it ends its executors."""
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

    def _launch(self, name: str, *command: str) -> None:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise EnvironmentProblem("pyspark is not installed", fix="Run: pip install tidemill")
        home = Path(spec.origin).parent
        settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        with (self.directory / f"{name}.log").open("wb") as log:
            # exec: spark-class replaces its shell by Java, so that the id is Java's own.
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *command],
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
