"""Where traces go: nowhere, unless OTEL_* variables name a collector (docs/traces.md).

One `Tracer` in the driver and one in each capture process, opened where the process begins. Where nobody asks for
traces there is none, and nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Protocol

from tidemill.telemetry import events
from tidemill.telemetry.spans import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Tracer(Protocol):
    """Any thread may call it."""

    def is_sampled(self, trace: int) -> bool:
        """The same in every process with the same OTEL_TRACES_SAMPLER: it goes by the trace's id."""

    def record(self, trace: int, spans: Iterable[Span]) -> None:
        """Of a trace that is sampled. Returns at once; what the collector does not take in time is lost."""

    def close(self) -> None:
        """Exports what is left, for two seconds at most. May be called again."""


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether an endpoint or the exporter `otlp` is named, and nothing switches it off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return exporter == "otlp" or (not exporter and any(environment.get(name) for name in ENDPOINTS))


def open_tracer() -> Tracer | None:
    """No pipeline fails because it cannot be traced: what is wrong is a warning."""
    if not is_wanted():
        return None
    try:
        from tidemill.telemetry.otlp import OtlpTracer

        return OtlpTracer()
    except ImportError as error:
        events.warn("telemetry.traces_off", error=str(error), fix="Run `pip install tidemill[otel]`.")
    except Exception as error:  # noqa: BLE001  whatever the library says of an OTEL_* variable
        events.warn("telemetry.traces_off", error=str(error), fix="Correct the OTEL_* variables.")
    return None
