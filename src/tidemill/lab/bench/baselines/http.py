from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from tidemill.formats.json import JsonFormat
from tidemill.lab.bench.baselines.baseline import Baseline
from tidemill.lab.servers.http_receiver import Sponge
from tidemill.sinks.http import HttpConfig


class HttpBaseline(Baseline):
    """The receiver answers at once and keeps nothing, for both. Bodies are the same bytes, over one connection each."""

    loop = "urllib3 POST of ready bodies of 500 events"
    events = 500
    options: ClassVar[Mapping[str, Any]] = {"mode": "batch", "max_events": events, "concurrency": 1}

    def start(self) -> None:
        self._server = self.stack.enter_context(Sponge())
        lines = [JsonFormat().stack(block, "bench").to_pylist() for block in self.material.blocks()]
        self._bodies = [b"".join(ls[at : at + self.events]) for ls in lines for at in range(0, len(ls), self.events)]
        self._type = {"Content-Type": "application/x-ndjson"}

    def config(self, target: str) -> dict[str, Any]:
        return {"url": f"{self._server.url}/{target}", **self.options}

    def plain(self, target: str) -> float:
        import urllib3

        url = f"{self._server.url}/{target}"
        with urllib3.PoolManager() as pool:
            pool.request("POST", url, body=b"", headers=self._type)
            began = time.perf_counter()
            for body in self._bodies:
                pool.request("POST", url, body=body, headers=self._type)
            return time.perf_counter() - began


class HttpEventBaseline(HttpBaseline):
    """One event in a request."""

    loop = "urllib3 POST of ready events, one by one"
    options: ClassVar[Mapping[str, Any]] = {"concurrency": 1}

    def start(self) -> None:
        self._server = self.stack.enter_context(Sponge())
        self._bodies = self.values()
        self._type = {"Content-Type": "application/json"}


class HttpThreadsBaseline(HttpBaseline):
    """As many connections as the sink has by default; the plain loop keeps no order between them."""

    loop = "urllib3 POST of ready bodies of 500 events from 8 threads"
    options: ClassVar[Mapping[str, Any]] = {"mode": "batch", "max_events": HttpBaseline.events}

    def plain(self, target: str) -> float:
        import urllib3

        url, threads = f"{self._server.url}/{target}", HttpConfig.model_fields["concurrency"].default

        def post(body: bytes) -> None:
            pool.request("POST", url, body=body, headers=self._type)

        with urllib3.PoolManager(maxsize=threads, block=True) as pool, ThreadPoolExecutor(threads) as crew:
            list(crew.map(post, [b""] * threads))
            began = time.perf_counter()
            list(crew.map(post, self._bodies))
            return time.perf_counter() - began
