"""A second host on this machine: a network namespace, joined to ours by a pair of virtual interfaces that can be cut.

Only root can make one, with `ip` (Debian: iproute2). Processes there see our files, but reach nothing except `near`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from types import TracebackType

import pytest


class SecondHost:
    """`near` is our address on the cable, `far` the other host's; `enter` runs a command there."""

    def __init__(self) -> None:
        number = os.getpid() % 0x4000  # two runs side by side have networks of their own
        base = f"10.213.{number >> 6}.{(number & 63) << 2}".rpartition(".")
        self.near, self.far = (f"{base[0]}.{int(base[2]) + one}" for one in (1, 2))
        self._name, self._cable = f"tidemill-{os.getpid()}", f"tm{os.getpid()}"
        self.enter = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> SecondHost:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("a second host needs root and `ip` (Debian: iproute2)")
        there = self.enter[1:]
        commands = (
            ("netns", "add", self._name),
            ("link", "add", self._cable, "type", "veth", "peer", "name", "far", "netns", self._name),
            ("addr", "add", f"{self.near}/30", "dev", self._cable),
            ("link", "set", self._cable, "up"),
            (*there, "ip", "addr", "add", f"{self.far}/30", "dev", "far"),
            (*there, "ip", "link", "set", "far", "up"),
            (*there, "ip", "link", "set", "lo", "up"),
        )
        try:
            for command in commands:
                done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
                if command == commands[0] and done.returncode:
                    pytest.skip(f"no network namespace can be made here: {done.stderr.strip()}")
                assert done.returncode == 0, f"ip {' '.join(command)}: {done.stderr}"
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        subprocess.run(["ip", "link", "set", self._cable, "down"], check=True)

    def join(self) -> None:
        subprocess.run(["ip", "link", "set", self._cable, "up"], check=True)

    def _remove(self) -> None:
        for command in (("link", "del", self._cable), ("netns", "del", self._name)):
            with suppress(FileNotFoundError):
                subprocess.run(["ip", *command], capture_output=True, check=False)
