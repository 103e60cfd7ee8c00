"""PostgreSQL refuses to run as root. Containers and CI often are root; here is how it runs there all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tidemill.errors import EnvironmentProblem

_NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Account:
    """`prefix` goes before a command. The command keeps its process id: the prefix ends in an exec."""

    prefix: tuple[str, ...] = ()
    chown: bool = False

    def own(self, *paths: Path) -> None:
        """Makes the files belong to whom the command runs as."""
        if self.chown:
            for path in paths:
                os.chown(path, _NOBODY, _NOBODY)


@cache
def ordinary_user() -> Account:
    """Ourselves, unless we are root.

    A user namespace that calls root `nobody` is the first choice: outside of it the files stay root's, so no path
    changes hands. Containers often forbid namespaces but let root become somebody else: then files do change hands,
    and every folder above them must be open to others.
    """
    if os.geteuid() != 0:
        return Account()
    namespace = ("unshare", "--user", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}", "--")
    other = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--")
    for prefix, chown in ((namespace, False), (other, True)):
        if shutil.which(prefix[0]) and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
            return Account(prefix, chown)
    raise EnvironmentProblem(
        "PostgreSQL cannot run as root, and this machine allows neither user namespaces nor another user",
        fix="Run as an ordinary user, or install util-linux (unshare, setpriv).",
    )
