from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import obstore
import orjson

from tests.delivery.destination import Event, HoldsEvents
from tidemill.lab.servers.seaweedfs import SeaweedFS


class S3(HoldsEvents[SeaweedFS]):
    """Read as the docs tell readers to: what the manifests name. The signature covers the address, and the endpoint a
    client was given is the one it signs, so a proxy may stand between."""

    def __init__(self, directory: Path) -> None:
        self.server = SeaweedFS()

    def start(self) -> None:
        self.server.start()
        self.server.bucket("proof")

    def config(self, port: int | None) -> dict[str, Any]:
        return {
            "bucket": "proof", "prefix": "cdc", "endpoint": f"http://127.0.0.1:{port}", "max_rows": 30,
            "access_key_id": self.server.access_key, "secret_access_key": self.server.secret_key,
            "timeout_seconds": 10,
        }  # fmt: skip

    def events(self) -> Iterable[Event]:
        store: Any = self.server.store("proof")
        names = sorted(meta["path"] for meta in obstore.list(store, "cdc/_tidemill/manifests/").collect())
        for name in names:
            events = []
            for file in orjson.loads(bytes(obstore.get(store, name).bytes()))["files"]:
                content = bytes(obstore.get(store, f"cdc/{file['path']}").bytes())
                events += [orjson.loads(line) for line in content.splitlines()]
            yield from sorted(events, key=lambda event: int(event["offset"]))


destination = S3
