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
    key_kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(
        "req", "-x509", *key_kind, "-days", "10", "-subj", "/CN=Tidemill test CA", "-keyout", ca_key, "-out", made.ca
    )
    request = folder / "server.csr"
    _openssl("req", *key_kind, "-subj", "/CN=localhost", "-keyout", made.key, "-out", request)
    names = folder / "names"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    _openssl(
        "x509", "-req", "-in", request, "-CA", made.ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "10",
        "-extfile", names, "-out", made.certificate,
    )  # fmt: skip
    for leftover in (ca_key, request, names, folder / "ca.srl"):
        leftover.unlink(missing_ok=True)
    made.key.chmod(0o600)
    return made


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise EnvironmentProblem("openssl failed", where=arguments[0].__str__(), fix=done.stderr.strip())
