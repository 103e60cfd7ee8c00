"""The metrics of a server and of the workers that it started, as one answer: Prometheus asks the server's port alone.

Every series has its pipeline as a label, and a pipeline runs in one process, so families are put together by name.
"""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tidemill.telemetry import events
from tidemill.telemetry.metrics import Metrics

_SECONDS = 3.0  # that one worker may take
_AT_ONCE = 16
_CREATED = "_created"  # when a counter began: the text format shows it as a family of its own, which nobody asks for


def federate(own: Metrics, workers: Callable[[], Sequence[str]], secret: str = "") -> CollectorRegistry:
    """`workers` says where each of them can be asked, by who knows the `secret`."""
    registry = CollectorRegistry()
    registry.register(_FederatedCollector(own, workers, secret))
    return registry


class _FederatedCollector(Collector):
    def __init__(self, own: Metrics, workers: Callable[[], Sequence[str]], secret: str) -> None:
        self._own, self._workers, self._secret = own, workers, secret

    def describe(self) -> Iterable[Metric]:
        return self._own.registry.collect()

    def collect(self) -> Iterator[Metric]:
        families = {each.name: each for each in self._own.registry.collect()}
        urls = self._workers()
        with ThreadPoolExecutor(min(_AT_ONCE, len(urls)) or 1, "worker metrics") as pool:
            for found in pool.map(self._read, urls):
                for family in found:
                    known = families.get(family.name)
                    if known is not None:
                        known.samples += family.samples
        yield from families.values()

    def _read(self, url: str) -> list[Metric]:
        """None of a worker that is just ending."""
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._secret}"})
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                text = answer.read().decode()
        except OSError as error:
            events.emit("metrics.worker_not_read", logging.DEBUG, url=url, error=str(error))
            return []
        return [each for each in text_string_to_metric_families(text) if not each.name.endswith(_CREATED)]
