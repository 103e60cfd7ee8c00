"""A server's schedules as a process, for tests that kill it: the queue, the slots of a cron, the leases. Its runs only
note that they were."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tidemill.config.spec.schedule import Schedule
from tidemill.service.lease.leases import keeping_leases
from tidemill.service.schedule.run_queue import RunQueue
from tidemill.service.schedule.slots import SlotWatch
from tidemill.service.schedule.values import RunRequest, RunResult


def read_lines(notes: Path, kind: str) -> list[tuple[str, str]]:
    """Slots and processes of what was noted, in order."""
    lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    return [(slot, pid) for noted, slot, pid in lines if noted == kind]


def main(directory: Path) -> None:
    def note(kind: str, request: RunRequest) -> None:
        with (directory / "notes").open("a") as file:
            file.write(f"{kind} {request.slot} {os.getpid()}\n")

    def execute(request: RunRequest) -> RunResult:
        if (directory / "block").exists():
            note("blocked", request)
            time.sleep(600)
        note("ended", request)
        return RunResult(0, 1)

    state = str(directory / "state.sqlite")
    with keeping_leases(state, 3.0) as leases:
        queue = RunQueue(state, leases.holder, execute)
        leases.announce()
        queue.begin()
        slots = SlotWatch(queue)
        while True:
            slots.look({"orders": Schedule(cron="* * * * * *")}, {})
            queue.recover(leases.is_there)
            time.sleep(0.3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
