"""A pipeline that is created, changed, paused, broken and drained over HTTP: PostgreSQL into files, nothing lost."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.support.waiting import until
from tidemill.api.app import create_app
from tidemill.api.client import ServerClient
from tidemill.api.ports import Address
from tidemill.api.serve import ServerSettings, serving
from tidemill.config.confine import Confinement
from tidemill.errors import LifecycleError
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.runtime import Runtime
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.document_set import ControlSettings
from tidemill.service.server.tokens import Role, Tokens
from tidemill.state import open_installation
from tidemill.telemetry.metrics import Metrics


def test_events_reach_the_files_through_every_change_over_the_api(
    tmp_path: Path, spark: Any, postgres18: Postgres
) -> None:
    events = tmp_path / "lake"

    def delivered() -> list[int]:
        lines = [line for file in events.rglob("*.jsonl*") for line in file.read_bytes().splitlines()]
        return sorted(orjson.loads(line)["after"]["id"] for line in lines)

    with postgres18.database("served") as dsn:
        store = open_installation(str(tmp_path / "state.sqlite"))
        settings = ControlSettings(
            state_dir=tmp_path / "state",
            confinement=Confinement((events, *_sockets(dsn)), frozenset({"SHOP_DSN"})),
            trial_seconds=60,
            environment={"SHOP_DSN": dsn},
        )
        control = ControlPlane(Runtime(spark=spark, metrics=Metrics()), store, settings)
        control.load()
        control.start_wanted()
        tokens = Tokens(store)
        client_token = tokens.create("ann", Role.ADMIN)[0]
        server = ServerSettings(Address("127.0.0.1", 0), None, "")
        with (
            psycopg.connect(dsn, autocommit=True) as shop,
            serving(create_app(control, tokens), server, Metrics().registry, lambda line: None) as (url, _),
        ):
            client = ServerClient(url, client_token)
            shop.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")

            def insert(first: int, last: int) -> None:
                shop.execute("INSERT INTO orders SELECT n, 'x' FROM generate_series(%s::int, %s::int) n", [first, last])

            def streams() -> bool:
                return bool(client.status("orders")["began"])

            source = {"id": "shop", "dsn": "${SHOP_DSN}", "tables": ["public.orders"]}
            made = client.create({
                "metadata": {"name": "orders"},
                "spec": {
                    "source": {"type": "postgres", "config": source},
                    "sinks": [{"type": "files", "config": {"id": "lake", "path": str(events)}}],
                },
            })  # fmt: skip
            assert made.status == "running"
            until(streams)
            insert(1, 100)
            until(lambda: client.status("orders")["events"] == 100)

            patched = client.patch("orders", {"spec": {"batch": {"max_events": 10}}}, version=made.version)
            assert patched.status == "running"
            insert(101, 200)
            with pytest.raises(LifecycleError, match="cannot start"):
                client.patch("orders", {"spec": {"source": {"config": {"slot": "taken", "tables": ["public.none"]}}}})
            assert client.pipeline("orders").version == patched.version
            until(streams)

            client.pause("orders")
            insert(201, 300)
            client.resume("orders")
            until(streams)
            until(lambda: len(delivered()) >= 300)
            assert [each["table"] for each in client.request("GET", "/pipelines/orders/schemas")] == ["public.orders"]
            last = client.request("GET", "/pipelines/orders/log?limit=1")
            assert last[0]["after"]["id"] == 300
            assert client.drain("orders").status == "stopped"
            assert delivered() == list(range(1, 301))
            assert client.request("GET", "/pipelines/orders/checkpoints")["checkpoint"]["offset"] == 300
            control.close(drain_seconds=5)  # before its slot goes with the database


def test_a_dropped_slot_fails_a_served_pipeline_and_one_call_makes_the_copy_equal_again(
    tmp_path: Path, spark: Any, postgres18: Postgres
) -> None:
    with postgres18.database("lost") as dsn, postgres18.database("lost_copy") as target:
        store = open_installation(str(tmp_path / "state.sqlite"))
        roots = (*_sockets(dsn), *_sockets(target))
        settings = ControlSettings(
            state_dir=tmp_path / "state",
            confinement=Confinement(roots, frozenset({"LOST_DSN", "LOST_COPY"})),
            environment={"LOST_DSN": dsn, "LOST_COPY": target},
        )
        control = ControlPlane(Runtime(spark=spark, metrics=Metrics()), store, settings)
        control.load()
        control.start_wanted()
        tokens = Tokens(store)
        server = ServerSettings(Address("127.0.0.1", 0), None, "")
        with (
            psycopg.connect(dsn, autocommit=True) as shop,
            psycopg.connect(target, autocommit=True) as copy,
            serving(create_app(control, tokens), server, Metrics().registry, lambda line: None) as (url, _),
        ):
            client = ServerClient(url, tokens.create("bob", Role.ADMIN)[0])
            shop.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")

            def equal() -> bool:
                there = "SELECT to_regclass('items')"
                if copy.execute(there).fetchone() == (None,):
                    return False
                rows = [db.execute("SELECT id, note FROM items ORDER BY id").fetchall() for db in (shop, copy)]
                return rows[0] == rows[1]

            source = {"id": "lost", "dsn": "${LOST_DSN}", "tables": ["public.items"], "slot": "lost_slot"}
            sink = {"id": "copy", "dsn": "${LOST_COPY}", "table": "${source.table}"}
            client.create({
                "metadata": {"name": "lost"},
                "spec": {
                    "source": {"type": "postgres", "config": source},
                    "sinks": [{"type": "postgres", "config": sink}],
                },
            })  # fmt: skip
            until(lambda: client.status("lost")["began"])
            shop.execute("INSERT INTO items SELECT n, 'old' FROM generate_series(1, 20) n")
            until(equal)

            _drop_slot(shop, "lost_slot")
            shop.execute("DELETE FROM items WHERE id <= 5")
            shop.execute("UPDATE items SET note = 'new' WHERE id BETWEEN 6 AND 10")
            shop.execute("INSERT INTO items VALUES (21, 'came in the gap')")
            until(lambda: client.pipeline("lost").status == "failed")
            error = client.pipeline("lost").error or {}
            assert error["code"] == "slot-lost"
            for way_out in ("--snapshot", "--accept-gap"):
                assert f"tidemill pipelines recover lost {way_out}" in error["fix"]

            done = client.recover("lost", "snapshot", reason="somebody dropped the slot")
            assert done["snapshot"] is not None
            assert client.start("lost").status == "running"
            until(equal)
            shop.execute("INSERT INTO items VALUES (22, 'streams again')")
            until(equal)
            assert client.pipeline("lost").status == "running"
            control.close(drain_seconds=5)


def _drop_slot(db: psycopg.Connection[Any], slot: str) -> None:
    """Capture connects again at once: tried until it was not there for a moment."""

    def drop() -> bool:
        db.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [slot])
        with suppress(psycopg.errors.ObjectInUse):
            db.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            return True
        return False

    until(drop)


def _sockets(dsn: str) -> list[Path]:
    """The test's server may listen on a socket of its own: that is a file of this machine."""
    host = str(psycopg.conninfo.conninfo_to_dict(dsn).get("host", ""))
    return [Path(host)] if host.startswith("/") else []
