"""Logins, names and what `doctor` says."""

from __future__ import annotations

import pytest

from tests.sinks.benches import INSERT, T, row
from tests.sinks.clickhouse.support import Bench
from tests.support.changes import changes, delivery
from tidemill.contracts import Outcome
from tidemill.errors import EnvironmentProblem, Refused
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.sinks.clickhouse import ClickHouseConfig, ClickHouseSink


def test_doctor_says_what_it_found(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    checks = {c.name: c for c in bench.sink().doctor()}
    assert all(c.outcome is Outcome.PASS for c in checks.values())
    assert checks.keys() >= {"server", "database", "privileges", "table t"}
    wrong = ClickHouseSink(ClickHouseConfig(id="x", port=bench.server.port, password="wrong"))  # type: ignore[arg-type]
    (check,) = wrong.doctor()
    assert (check.outcome, check.fix) == (Outcome.FAIL, "Check user and password.")


def test_a_wrong_password_is_refused_and_not_repeated_in_the_error(bench: Bench) -> None:
    with pytest.raises(Refused, match="does not let us in") as caught:
        bench.write(
            delivery(changes(T, (INSERT, None, row(1)))), url=f"http://default:hush@127.0.0.1:{bench.server.port}"
        )
    assert "hush" not in str(caught.value)


def test_names_must_be_the_same_for_all_rows_of_a_table() -> None:
    with pytest.raises(ValueError, match="go to one table"):
        ClickHouseConfig(id="x", table="t_${after.region}")
    with pytest.raises(ValueError, match="must look like http"):
        ClickHouseConfig(id="x", url="clickhouse://host")


def test_the_stand_in_answers_errors_with_their_code(server: ClickHouse) -> None:
    with pytest.raises(EnvironmentProblem, match=r"Code: 60\."):
        server.query("SELECT * FROM nowhere")
