"""Tidemill: change data capture on Spark. One YAML file, every change in order, nothing lost."""

import contextlib
import os

__version__ = "0.1.0"


def _keep_kernels() -> None:
    """Gives numba a place for compiled kernels where it would find none, and could then not even import them.

    Its own choice is beside the code, or else in the user's cache folder. A container with a read-only package and
    no home has neither: there the temporary folder serves. Child processes inherit the choice.
    """
    if "NUMBA_CACHE_DIR" in os.environ or os.access(os.path.dirname(__file__), os.W_OK):
        return
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    with contextlib.suppress(OSError):
        os.makedirs(cache, exist_ok=True)
    if os.access(cache, os.W_OK):
        return
    import tempfile

    place = os.path.join(tempfile.gettempdir(), f"tidemill-kernels-{os.getuid()}")
    try:
        os.mkdir(place, 0o700)
    except OSError:
        # Compiled code is loaded from here: a folder that somebody else made is not ours to trust.
        if os.path.islink(place) or not os.path.isdir(place) or os.stat(place).st_uid != os.getuid():
            place = tempfile.mkdtemp(prefix="tidemill-kernels-")
    os.environ["NUMBA_CACHE_DIR"] = place


_keep_kernels()
