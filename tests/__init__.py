"""The first that is imported of the tests: what has to be said before anything of Tidemill is."""

import os
from pathlib import Path

# Kernels are compiled once per machine, not once per run; workers of Spark inherit the place.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parent.parent / "build" / "numba"))
