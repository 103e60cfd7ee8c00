"""The log's disk is full: capture waits and says so, and goes on when there is room. Nothing is lost meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.actors import capture_status, wait_for
from tests.crash.postgres import PostgresHarness
from tests.crash.test_capture import KEEP, staged
from tests.crash.workload import Load

_DISK_MIB, _ROOM_MIB = 192, 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which is full for ordinary users and for root alike."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a file system of a chosen size can only be mounted as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tidemill-test", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this machine does not let root mount: {mounted.stderr.strip()}")
    yield disk
    # Lazily: a reader of the test may still hold a mapped file.
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_makes_capture_wait_with_a_clear_error_and_costs_no_event(
    source: PostgresHarness, evidence: Path, small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    with staged(source, evidence, log={**KEEP, "uri": str(small_disk / "log")}) as stage:
        stage.begin()
        with Load(source, seed=23, moves={**source.MOVES, "medium": 20.0}).running():
            stage.enough()
            room = shutil.disk_usage(small_disk).free - (_ROOM_MIB << 20)
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, room)
            wait_for(lambda: bool(_trouble(stage.capture.pipeline)), 180, "capture never said that the disk is full")
            trouble = _trouble(stage.capture.pipeline)
            assert "No space left" in trouble["what"], trouble
            assert str(small_disk) in trouble["where"], trouble
            assert trouble["fix"], trouble
            time.sleep(2)
            assert stage.capture.alive
            ballast.unlink()
            wait_for(lambda: not _trouble(stage.capture.pipeline), 180, "there is room, but it does not go on")
        stage.finish()
        wait_for(lambda: not _trouble(stage.capture.pipeline), 180, "the trouble is over, but still shown")


def _trouble(pipeline: object) -> dict[str, str]:
    return dict(capture_status(pipeline).get("error") or {})  # type: ignore[arg-type]
