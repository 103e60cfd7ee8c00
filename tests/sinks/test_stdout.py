"""The stdout sink: lines reach the standard output of the process that announced it, whatever that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.deliveries import make_deliveries, make_events
from tidemill.contracts import Outcome
from tidemill.disk.output import lock_output
from tidemill.errors import DeliveryError
from tidemill.sinks.stdout import StdoutConfig, StdoutSink

# A driver that announces its output and prints, and a worker below it whose own output goes elsewhere, as in Spark.
DRIVER = """
import subprocess, sys
from tidemill.sinks.stdout import announce
announce()
print("first", flush=True)
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True, stdout=subprocess.DEVNULL)
print("last", flush=True)
"""
WORKER = """
from tests.support.deliveries import make_deliveries, make_events
from tidemill.sinks.stdout import StdoutConfig, StdoutSink
sink = StdoutSink(StdoutConfig(id="out"))
for delivery in make_deliveries(make_events(20), 0, 20):
    sink.write(delivery)
"""


def offsets(lines: list[bytes]) -> list[int]:
    return sorted(json.loads(line)["offset"] for line in lines)


@pytest.mark.parametrize("redirected", [False, True], ids=["pipe", "file"])
def test_lines_of_workers_reach_the_drivers_output_between_its_own(tmp_path: Path, redirected: bool) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", DRIVER, WORKER]
    if redirected:
        with (tmp_path / "out").open("wb") as out:
            subprocess.run(command, check=True, cwd=root, stdout=out)
        output = (tmp_path / "out").read_bytes()
    else:
        output = subprocess.run(command, check=True, cwd=root, stdout=subprocess.PIPE).stdout
    first, *lines, last = output.splitlines()
    assert (first, last) == (b"first", b"last")
    assert offsets(lines) == list(range(20))


def test_without_an_announcement_lines_go_to_the_workers_own_output(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TIDEMILL_STDOUT"}
    root = Path(__file__).parents[2]
    output = subprocess.run(
        [sys.executable, "-c", WORKER], check=True, cwd=root, stdout=subprocess.PIPE, env=environment
    )
    assert offsets(output.stdout.splitlines()) == list(range(20))


def test_a_path_is_appended_to(tmp_path: Path) -> None:
    target = tmp_path / "events"
    target.write_text("{}\n")
    sink = StdoutSink(StdoutConfig(id="out", path=str(target)))
    receipts = [sink.write(d) for d in make_deliveries(make_events(20), 0, 20)]
    sink.close()
    head, *lines = target.read_bytes().splitlines()
    assert head == b"{}"
    assert offsets(lines) == list(range(20))
    assert sum(r.bytes for r in receipts) == target.stat().st_size - 3


def test_lanes_do_not_mix_their_lines_in_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    holder = os.open(pipe, os.O_WRONLY)  # the reader sees the end only when every lane is done
    sinks = [StdoutSink(StdoutConfig(id="out", path=str(pipe))) for _ in range(2)]
    lanes = make_deliveries(make_events(1000), 0, 1000)
    threads = [threading.Thread(target=s.write, args=(d,)) for s, d in zip(sinks, lanes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sink in sinks:
        sink.close()
    os.close(holder)
    reader.join()
    assert offsets(received[0].splitlines()) == list(range(1000))


def test_a_path_that_cannot_be_written_fails_with_its_fix(tmp_path: Path) -> None:
    sink = StdoutSink(StdoutConfig(id="out", path=str(tmp_path / "none" / "x")))
    with pytest.raises(DeliveryError, match="cannot print: No such file or directory") as raised:
        sink.write(make_deliveries(make_events(10), 0, 10)[0])
    assert raised.value.fix
    (check,) = sink.doctor()
    assert check.outcome is Outcome.FAIL


def test_lines_of_the_status_stay_whole_beside_those_of_a_worker() -> None:
    """Neither is written in one piece where a pipe is full: who prints holds the lock of the output."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader:
        announced = f"/proc/{os.getpid()}/fd/{writing}"
        worker = StdoutSink(StdoutConfig(id="out", path=announced))
        with lock_output(writing):
            waiting = threading.Thread(
                target=lambda: [worker.write(each) for each in make_deliveries(make_events(20), 0, 20)]
            )
            waiting.start()
            os.write(writing, b"half a line, ")
            waiting.join(0.3)
            os.write(writing, b"and its end\n")
        waiting.join(30)
        worker.close()
        os.close(writing)
        first, *lines = reader.read().splitlines()
    assert first == b"half a line, and its end"
    assert offsets(lines) == list(range(20))
