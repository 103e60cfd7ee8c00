"""Another host on this machine: a network namespace, joined to ours by a pair of virtual interfaces that can be cut.

Only root can make one, with `ip` (Debian: iproute2). Processes there see our files, but reach nothing except this host,
by any of its addresses but 127.0.0.1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Self

from tidemill.errors import EnvironmentProblem


class VirtualHost:
    """`near` is our address on the cable, `far` the other host's; `enter` runs a command there. A process that makes
    several gives each its `number`, below 8."""

    def __init__(self, number: int = 0) -> None:
        run = (os.getpid() % 0x2000) << 3 | number  # two runs side by side have networks of their own
        third, fourth = (run >> 6) & 0xFF, (run & 63) << 2
        prefix = f"10.{208 + (run >> 14)}.{third}"
        self.near, self.far = f"{prefix}.{fourth + 1}", f"{prefix}.{fourth + 2}"
        self._name, self._cable = f"tidemill-{os.getpid()}-{number}", f"tm{os.getpid()}n{number}"
        self.enter = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise EnvironmentProblem(
                "another host needs root and the command ip", fix="Run it as root, with `ip` (Debian: iproute2)."
            )
        there = self.enter[1:]
        commands = (
            ("netns", "add", self._name),
            ("link", "add", self._cable, "type", "veth", "peer", "name", "far", "netns", self._name),
            ("addr", "add", f"{self.near}/30", "dev", self._cable),
            ("link", "set", self._cable, "up"),
            (*there, "ip", "addr", "add", f"{self.far}/30", "dev", "far"),
            (*there, "ip", "link", "set", "far", "up"),
            (*there, "ip", "link", "set", "lo", "up"),
            (*there, "ip", "route", "add", "default", "via", self.near),  # our other cables' addresses
        )
        try:
            for command in commands:
                done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
                if done.returncode:
                    raise EnvironmentProblem(
                        f"no network namespace can be made here: {done.stderr.strip()}",
                        where=f"ip {' '.join(command)}",
                    )
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
