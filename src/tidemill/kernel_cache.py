"""Where numba keeps compiled kernels: a folder of its own for each state of their sources. Called by `tidemill` itself.

numba recompiles a function when the file that defines it has changed. A function of another file that was inlined into
it, or a constant of another file, it does not look at: a kernel would go on with what they were when it was compiled.
So the folder carries a digest of all kernel sources, and of the versions of numba, llvmlite and numpy. A kernel source
is a file that imports numba, or one whose constants kernels use, which has a line "# Compiled into kernels" (a test
sees to it).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec

KEPT = 8  # folders, about 7 MB each: those that a process started with most recently

_FOLDER = re.compile(r"kernels-[0-9a-f]{16}")
_KERNEL = re.compile(rb"^(?:(?:from|import) numba\b|# Compiled into kernels)", re.MULTILINE)
_COMPILERS = (("numba", "_version.py"), ("llvmlite", "_version.py"), ("numpy", "version.py"))


def use_own_folder(package: str) -> None:
    """Sets NUMBA_CACHE_DIR, which child processes inherit; a no-op where the package is not a folder (a zip file)."""
    if not os.path.isdir(package):
        return
    name = f"kernels-{digest(package)}"
    for root in _roots(package):
        place = os.path.join(root, name)
        if _is_ours(place):
            break
    else:
        return  # numba finds no place either, and says so when a kernel is imported
    os.environ["NUMBA_CACHE_DIR"] = place
    if "numba" in sys.modules:  # it read its settings when it was imported
        from numba.core import config

        config.reload_config()


def digest(package: str) -> str:
    """Sixteen hex digits. Reads contents: a time stamp and a size may be the same for other code."""
    found = hashlib.sha256()
    for path in sorted(_sources(package)):
        with open(path, "rb") as file:
            content = file.read()
        if is_source(content):
            found.update(f"{os.path.relpath(path, package)}\0{len(content)}\0".encode() + content)
    for module, file_name in _COMPILERS:
        spec = find_spec(module)
        if spec is not None and spec.origin is not None:
            version = os.path.join(os.path.dirname(spec.origin), file_name)
            with contextlib.suppress(OSError), open(version, "rb") as file:
                found.update(file.read())
    return found.hexdigest()[:16]


def is_source(content: bytes) -> bool:
    """Plain searches first: most files have neither, and an expression takes longer to find that out."""
    return (b" numba" in content or b"# Compiled into" in content) and _KERNEL.search(content) is not None


def _sources(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path
            elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                yield from _sources(entry.path)


def _roots(package: str) -> Iterator[str]:
    """Where it may lie, best first. A container with a read-only package and no home still has a temporary folder."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        head, last = os.path.split(os.path.abspath(given))
        yield head if _FOLDER.fullmatch(last) else given  # inherited from a parent process, maybe of another version
    if os.access(package, os.W_OK):
        yield os.path.join(package, "__pycache__")
    yield os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    yield _temporary()


def _temporary() -> str:
    import tempfile

    place = os.path.join(tempfile.gettempdir(), f"tidemill-kernels-{os.getuid()}")
    try:
        os.mkdir(place, 0o700)
    except OSError:
        # Compiled code is loaded from here: a folder that somebody else made is not ours to trust.
        if os.path.islink(place) or not os.path.isdir(place) or os.stat(place).st_uid != os.getuid():
            place = tempfile.mkdtemp(prefix="tidemill-kernels-")
    return place


def _is_ours(place: str) -> bool:
    """Makes the folder if it is missing; then it is also time to remove the oldest of the others."""
    try:
        os.makedirs(place)
        _remove_oldest(os.path.dirname(place))
    except FileExistsError:
        with contextlib.suppress(OSError):
            os.utime(place)  # in use: it is removed after those that are not
    except OSError:
        return False
    return os.access(place, os.W_OK)


def _remove_oldest(root: str) -> None:
    """A process that still runs with one of them compiles anew what it has not loaded."""
    import shutil

    def last_use(entry: os.DirEntry[str]) -> float:
        try:
            return entry.stat().st_mtime
        except OSError:  # another process was faster
            return 0.0

    with os.scandir(root) as entries:
        folders = [entry for entry in entries if _FOLDER.fullmatch(entry.name)]
    for entry in sorted(folders, key=last_use, reverse=True)[KEPT:]:
        shutil.rmtree(entry.path, ignore_errors=True)
