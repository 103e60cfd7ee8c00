"""A Kafka on loopback for `bench` and the tests: a real broker where Java and Maven are to be had, else a stand-in.

`Broker` is Apache Kafka itself, one KRaft node, from the jars that Maven puts into a cache folder. It can be stopped,
killed and started again on the same port with the same data: a broker that goes away. `Mock` is librdkafka's mock
cluster in a process of its own; it speaks the protocol, keeps everything in memory and forgets it when it stops.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.process import free_ports

VERSION = "4.1.0"
JAVA_OPTIONS = "KAFKA_OPTS"  # the variable that Kafka's own start script reads
_SLF4J = "1.7.36"  # the binding must match the slf4j-api that Kafka brings
_HEAP = "512m"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidemill</groupId><artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>{_SLF4J}</version>
    </dependency>
  </dependencies>
</project>
"""


def local_kafka(
    directory: Path, cache: Path, settings: Mapping[str, str] | None = None, *, address: str = "127.0.0.1"
) -> Broker | Mock:
    """A started Kafka with its data in `directory`; the real broker if the jars can be had, the mock cluster if not,
    which is on 127.0.0.1 always."""
    try:
        broker = Broker(directory, fetch_jars(cache), settings, address=address)
    except EnvironmentProblem:
        mock = Mock(settings)
        mock.start()
        return mock
    broker.start()
    return broker


def fetch_jars(cache: Path) -> Path:
    """The folder of the broker's classpath. Asks Maven once; the folder appears under its name only when complete."""
    jars = cache / f"kafka-{VERSION}"
    if jars.is_dir():
        return jars
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise EnvironmentProblem(f"no Kafka broker without {tool}", fix="Install a Java 17 runtime and Maven.")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".kafka-") as work:
        (Path(work) / "pom.xml").write_text(_POM)
        command = [
            "mvn",
            "-q",
            "-B",
            "dependency:copy-dependencies",
            "-DoutputDirectory=jars",
            "-DincludeScope=runtime",
        ]
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired as error:
            raise EnvironmentProblem("Maven did not bring Kafka's jars within 5 minutes") from error
        if done.returncode:
            reason = done.stdout.strip().splitlines()[:1]
            raise EnvironmentProblem(
                f"Maven could not bring Kafka's jars: {' '.join(reason)}", fix="Give Maven a reachable repository."
            )
        with contextlib.suppress(OSError):  # another process was faster: its folder is as good as ours
            os.rename(Path(work) / "jars", jars)
    return jars


class _Server:
    """What both kinds share: one child process, ended by its id, and the address that clients take."""

    label = ""

    def __init__(self) -> None:
        self.bootstrap = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        raise NotImplementedError

    def stop(self, *, kill: bool = False) -> None:
        """SIGTERM (a broker hands over and syncs first) or, with `kill`, SIGKILL. Returns when the process is gone."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(30)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None

    def __enter__(self) -> Self:
        if not self.running:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Broker(_Server):
    """Apache Kafka: broker and controller in one JVM. `settings` are added to server.properties; clients reach it at
    `address`."""

    label = f"broker {VERSION}"

    def __init__(
        self, directory: Path, jars: Path, settings: Mapping[str, str] | None = None, *, address: str = "127.0.0.1"
    ) -> None:
        super().__init__()
        self._directory = directory
        self._jars = jars
        self._settings = dict(settings or {})
        self._port, self._controller_port = free_ports(2)
        self._address = address
        self.bootstrap = f"{address}:{self._port}"

    def start(self, *, timeout: float = 60.0) -> None:
        """Returns when clients are answered. A second start keeps port and data."""
        properties = self._directory / "server.properties"
        if not properties.exists():
            self._format(properties)
        log = self._directory / "broker.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(properties)],
                cwd=self._directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C belongs to the owner, which then stops the broker in order
            )  # fmt: skip
        deadline = time.monotonic() + timeout
        while not _answers(self._address, self._port):
            if not self.running or time.monotonic() > deadline:
                self.stop()
                tail = log.read_text(errors="replace").strip().splitlines()[-5:]
                raise EnvironmentProblem("the Kafka broker did not start", where=str(log), fix="\n".join(tail))
            time.sleep(0.05)

    def _format(self, properties: Path) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self._directory / "data"),
            # One node has no replicas to give; the defaults of 3 would leave groups and transactions without a home.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.partitions": "4",
            **self._settings,
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "x")
        done = subprocess.run(
            [*self._java(), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)],
            cwd=self._directory, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode:
            properties.unlink()
            raise EnvironmentProblem("the Kafka broker's storage could not be formatted", fix=done.stderr[-500:])

    def _java(self) -> list[str]:
        return [
            "java", f"-Xmx{_HEAP}", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *shlex.split(os.environ.get(JAVA_OPTIONS, "")), "-cp", f"{self._jars}/*",
        ]  # fmt: skip


class Mock(_Server):
    """librdkafka's mock cluster. Topics appear on first use; `settings` knows `num.partitions` only."""

    label = "mock"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._partitions = (settings or {}).get("num.partitions", "4")

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, self._partitions],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.bootstrap = self._process.stdout.readline().decode().strip()
        if not self.bootstrap:
            self.stop()
            raise EnvironmentProblem("librdkafka's mock cluster did not start", fix="Install tidemill[kafka].")


def _answers(address: str, port: int) -> bool:
    # An ApiVersions request, version 0: an open port is not yet a broker that serves.
    header = (18).to_bytes(2) + (0).to_bytes(2) + (1).to_bytes(4) + (0xFFFF).to_bytes(2)
    try:
        with socket.create_connection((address, port), 1) as connection:
            connection.settimeout(2)
            connection.sendall(len(header).to_bytes(4) + header)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


def _serve_mock(partitions: str) -> Iterator[str]:
    from confluent_kafka import Producer

    # The cluster lives inside this client. Messages are not kept apart from it, so it ends with this process.
    owner = Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "topic.metadata.refresh.interval.ms": -1}
    )
    yield ",".join(f"{b.host}:{b.port}" for b in owner.list_topics(timeout=10).brokers.values())
    sys.stdin.read()  # until the owner closes the pipe or goes away


if __name__ == "__main__":
    for line in _serve_mock(sys.argv[1]):
        print(line, flush=True)
