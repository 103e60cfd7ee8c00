"""One pipeline of an installation in a process of its own: what `tidemill worker` runs.

It talks to servers through the state store alone: they keep documents and what operators want, it holds the pipeline's
lease and does what the store says. A pipeline that is not there yet is waited for.
"""

from __future__ import annotations

import threading

from tidemill.service.lease.leases import keeping_leases
from tidemill.service.run.interrupts import call_on_hangup
from tidemill.service.runtime import Runtime
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.document_set import ControlSettings
from tidemill.service.server.reload import reload_files
from tidemill.service.server.watched_files import WatchedFiles, watching_files
from tidemill.state import open_installation
from tidemill.telemetry import events
from tidemill.telemetry.metrics import Metrics

_HURRY_SECONDS = 2.0


def run_worker(
    state: str,
    control: ControlSettings,
    metrics: Metrics,
    *,
    lease_seconds: float,
    drain_seconds: float,
    stop: threading.Event,
    hurry: threading.Event,
    watch_files: bool = False,
) -> None:
    """Until `stop`, which drains; `hurry` cuts that short. SIGHUP reads the files again, and so does a change of one
    with `watch_files`. Called in the main thread."""
    with keeping_leases(state, lease_seconds) as leases:
        runtime = Runtime(metrics=metrics, leases=leases, runs=control.runs)
        fleet = ControlPlane(runtime, open_installation(state), control)
        fleet.load()
        events.emit("worker.started", pipelines=",".join(sorted(control.runs or ())))
        threading.Thread(target=fleet.start_wanted, name="first start", daemon=True).start()
        files = WatchedFiles(control.files, lambda: reload_files(fleet, "a file has changed"))
        with call_on_hangup(lambda: reload_files(fleet, "SIGHUP")), watching_files(files, watch_files):
            stop.wait()
        ending = threading.Thread(
            target=fleet.close, kwargs={"drain_seconds": drain_seconds}, name="drain", daemon=True
        )
        ending.start()
        while ending.is_alive():
            if hurry.wait(0.1):
                fleet.runtime.close(seconds=_HURRY_SECONDS)
                ending.join()
    events.emit("worker.stopped")
