"""pyarrow without pandas: in processes where only our code runs."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import sys
import pyarrow as pa
from tidemill.model.columns import leave_out_pandas

leave_out_pandas()
pa.array([1, None])
pa.RecordBatch.from_pylist([{"a": "x"}])
print("pandas" in sys.modules)
print(pa.table({"a": [1]}).to_pandas()["a"][0])
leave_out_pandas()
"""

CAPTURE = """
import io, os, sys
from tidemill.capture import __main__ as capture
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
try:
    capture.main()
except BaseException:
    pass
import pyarrow as pa
pa.array([1])
print("pandas" in sys.modules)
"""


def run(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_lists_become_columns_without_pandas_which_is_there_for_who_asks() -> None:
    assert run(ALONE) == ["False", "1"]


def test_capture_goes_without_pandas() -> None:
    assert run(CAPTURE) == ["False"]
