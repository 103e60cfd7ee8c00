"""A certificate authority and a server certificate for 127.0.0.1 and localhost, made with the `openssl` command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import EnvironmentProblem


@dataclass(frozen=True, slots=True)
class Certificates:
    folder: Path
    ca: Path
    certificate: Path
    key: Path


def make(folder: Path) -> Certificates:
    """Valid for ten days: nobody should come to rely on them."""
    if not shutil.which("openssl"):
        raise EnvironmentProblem("the openssl command is missing", fix="Install the package openssl.")
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder, folder / "ca.crt", folder / "server.crt", folder / "server.key")
    ca_key = folder / "ca.key"
    new = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "10")
    # Python from 3.13 on refuses a CA that does not say that it may sign, and a certificate without its CA's key id.
    _openssl(
        "req", *new, "-subj", "/CN=Tidemill test CA", "-addext", "keyUsage=critical,keyCertSign",
        "-keyout", ca_key, "-out", made.ca,
    )  # fmt: skip
    _openssl(
        "req", *new, "-subj", "/CN=localhost", "-CA", made.ca, "-CAkey", ca_key,
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
        "-keyout", made.key, "-out", made.certificate,
    )  # fmt: skip
    ca_key.unlink()
    made.key.chmod(0o600)
    return made


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise EnvironmentProblem("openssl failed", where=arguments[0].__str__(), fix=done.stderr.strip())
