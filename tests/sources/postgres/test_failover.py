"""Whether a promoted standby has the history that our position belongs to."""

from __future__ import annotations

from pathlib import Path

from tests.sources.postgres.histories import (
    capture,
    confirm,
    insert,
    refused,
    server_with_table,
    standby_of,
    write_past_our_position,
)
from tests.support.capturing import capturing, eventually
from tidemill.lab.servers.postgres import Postgres
from tidemill.sources.postgres import PostgresConfig, PostgresSource


def promote(standby: Postgres, settings: PostgresConfig, primary: Postgres) -> PostgresConfig:
    standby.query("SELECT pg_promote()")
    dsn = settings.dsn.replace(f":{primary.port}/", f":{standby.port}/")
    return settings.model_copy(update={"dsn": dsn})


def sync_slot(primary: Postgres, standby: Postgres, settings: PostgresConfig, directory: Path) -> int:
    """Writes and delivers rows until the standby has the slot; returns how many there are.

    A standby keeps a slot only once its catalog_xmin and restart_lsn have passed those that the standby could reserve
    when it first saw it (manual 47.2.3): at a slot that does not move that never happens. A snapshot of running
    transactions, read and confirmed, lets it move. The standby's worker naps up to 30 seconds; a reload wakes it."""
    statement = (
        f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{settings.slot_name}' AND synced AND NOT temporary"
    )
    rows = 0

    def sync() -> bool:
        nonlocal rows
        primary.query("SELECT pg_log_standby_snapshot()")
        insert(settings.dsn, rows, rows + 5)
        rows += 5
        eventually(lambda: run.events >= rows, run)
        run.deliver()
        confirm(run, settings)
        standby.query("SELECT pg_reload_conf()")
        return bool(standby.query(statement))

    with capturing(PostgresSource(settings), directory) as run:
        eventually(sync, run)
    return rows


def test_a_failover_that_has_all_our_wal_goes_on_without_alarm_loss_or_duplicates(tmp_path: Path) -> None:
    with server_with_table() as (primary, plain):
        settings = plain.model_copy(update={"failover": True, "heartbeat_seconds": 0.5})
        PostgresSource(settings).setup()
        with standby_of(primary, tmp_path / "standby") as standby:
            primary.config(synchronized_standby_slots="standby")
            rows = sync_slot(primary, standby, settings, tmp_path)
            insert(settings.dsn, rows, rows + 5)
            assert capture(settings, tmp_path, rows + 5) == list(range(rows + 5))
            primary.kill()
            moved = promote(standby, settings, primary)
            insert(moved.dsn, rows + 5, rows + 10)
            assert capture(moved, tmp_path, rows + 10, deliver=True) == list(range(rows + 10))
            standby.restart("immediate")
            insert(moved.dsn, rows + 10, rows + 13)
            assert capture(moved, tmp_path, rows + 13) == list(range(rows + 13))


def test_a_standby_promoted_without_our_last_wal_is_a_lost_position(tmp_path: Path) -> None:
    with server_with_table() as (primary, plain):
        settings = plain.model_copy(update={"failover": True, "heartbeat_seconds": 0.5})
        PostgresSource(settings).setup()
        with standby_of(primary, tmp_path / "standby") as standby:
            rows = sync_slot(primary, standby, settings, tmp_path)
            standby.stop("fast")
            insert(settings.dsn, rows, rows + 5)
            capture(settings, tmp_path, rows + 5)
            primary.kill()
            standby.start()
            moved = promote(standby, settings, primary)
            write_past_our_position(moved, tmp_path)
            assert "timeline 2, which left ours (1)" in refused(moved, tmp_path).what
