from __future__ import annotations

import pytest

from tidemill.errors import LogCorrupt
from tidemill.stream.batch.failures import Carried, carry, job_error, reason

FROM_JAVA = """An error occurred while calling o126.getResult.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 3) (127.0.0.1 executor driver): java.io.IOException: Cannot run "python3"
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory
\tat java.base/java.lang.ProcessImpl.forkAndExec(Native Method)

Driver stacktrace:
"""


def test_what_java_says_is_what_people_read() -> None:
    assert job_error(Exception(FROM_JAVA), "orders", 7).what == (
        'a Spark job failed: java.io.IOException: Cannot run "python3" '
        "(Caused by: java.io.IOException: error=2, No such file or directory)"
    )


def test_an_error_without_more_words_is_its_first_line_or_its_kind() -> None:
    assert reason(ValueError("a: b\nc")) == "a: b"
    assert reason(ConnectionError()) == "ConnectionError"


def test_a_workers_traceback_stays_where_it_is() -> None:
    text = ": org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  KeyError: 'Ann'\n"
    assert reason(Exception(text)) == "org.apache.spark.api.python.PythonException: Traceback (most recent call last):"


def test_an_error_of_ours_comes_through_sparks_words_as_what_it_was() -> None:
    with pytest.raises(Carried) as carrier, carry():
        raise LogCorrupt("a block's checksum does not match", where='log "a\nb"', fix="Restore it.")
    raised = f"tidemill.stream.batch.failures.Carried: {carrier.value}"
    text = f"Lost task 0.0: PythonException: Traceback:\n  {raised}\n\tat java"
    error = job_error(Exception(text), "orders", 7)
    assert (type(error), error.where, error.fix) == (LogCorrupt, 'log "a\nb"', "Restore it.")
    assert error.what == "a Spark job failed: a block's checksum does not match"
