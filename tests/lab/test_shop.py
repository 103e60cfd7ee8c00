"""The demo's shop must count right, or its verdict is worth nothing."""

from __future__ import annotations

import threading

from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.shop import KEYS, Shop, tides


def test_the_shop_counts_exactly_what_it_commits(postgres18: Postgres) -> None:
    with postgres18.database("shop_counts") as dsn:
        shop = Shop(dsn)
        shop.create()
        shop.open()
        shop.serve(threading.Event(), seconds=3, pace=lambda elapsed: 400)
        for table in KEYS:
            balance = shop.committed[table, "insert"] - shop.committed[table, "delete"]
            assert len(shop.rows(table)) == balance, table
    assert shop.rolled_back > 0
    assert {op for _, op in shop.committed} == {"insert", "update", "delete"}
    assert shop.committed["products", "delete"] > 0, "no product changed its key"


def test_the_shop_closes_when_told_to(postgres18: Postgres) -> None:
    with postgres18.database("shop_closes") as dsn:
        shop = Shop(dsn)
        shop.create()
        shop.open()
        stop = threading.Event()
        worker = threading.Thread(target=shop.serve, args=(stop, 600))
        worker.start()
        stop.set()
        worker.join(10)
        assert not worker.is_alive()


def test_load_rises_and_falls() -> None:
    assert tides(0) < tides(2) < tides(4) > tides(6)
