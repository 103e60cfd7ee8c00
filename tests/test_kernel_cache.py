"""An installed package may lie where nothing can be written; its kernels must load there all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tidemill

# Root may write everywhere, so the refusal of the package's own folder is simulated; that of the home is real.
_PROGRAM = """
import os
allowed = os.access
os.access = lambda path, mode: not str(path).endswith("tidemill") and allowed(path, mode)
import tidemill
print(os.environ.get("NUMBA_CACHE_DIR", "numba's choice"))
"""


def test_without_a_writable_package_the_users_cache_is_left_to_numba(tmp_path: Path) -> None:
    assert _cache_dir(XDG_CACHE_HOME=str(tmp_path)) == "numba's choice"
    assert (tmp_path / "numba").is_dir()


def test_without_any_writable_place_kernels_go_to_a_private_temporary_folder(tmp_path: Path) -> None:
    chosen = Path(_cache_dir(XDG_CACHE_HOME="/proc/nowhere", TMPDIR=str(tmp_path)))
    assert chosen.parent == tmp_path
    assert chosen.stat().st_mode & 0o077 == 0
    assert _cache_dir(XDG_CACHE_HOME="/proc/nowhere", TMPDIR=str(tmp_path)) == str(chosen)


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    trap = tmp_path / f"tidemill-kernels-{os.getuid()}"
    trap.symlink_to(tmp_path / "elsewhere")
    assert _cache_dir(XDG_CACHE_HOME="/proc/nowhere", TMPDIR=str(tmp_path)) != str(trap)


def _cache_dir(**environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    source = str(Path(tidemill.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**clean, "PYTHONPATH": source, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()
