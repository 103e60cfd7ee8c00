"""From where a stream goes on: GTID sets over a failover, files at their own server only, and never a jump."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import TABLE, config, events, opened, purge
from tests.support.seed import sample
from tidemill.decoders._shared.mysql.gtid import Flavor, MariadbGtids, MysqlGtids
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.errors import PositionLost, SetupError
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.mysql import MysqlConfig, MysqlSource, errors
from tidemill.sources.mysql import resume as position

_rows = itertools.count(1)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.fixture(scope="module", params=KINDS)
def private(request: pytest.FixtureRequest) -> Iterator[Server]:
    with private_server(request.param) as server:
        server.query("CREATE DATABASE shop")
        server.query(TABLE, database="shop")
        yield server


def resume(settings: MysqlConfig, place: str) -> None:
    with opened(settings, place):
        pass


def insert(server: Server) -> bytes:
    """A row whose value no other has."""
    number = next(_rows)
    server.query("INSERT INTO shop.t VALUES (%s, %s)", [number, f"value <{number}>"])
    return f"value <{number}>".encode()


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_latest_begins_now_and_a_position_goes_on_after_it(private: Server, positions: str) -> None:
    before = insert(private)
    settings = config(private.dsn(), "shop.t", positions=positions)
    with opened(settings) as source:
        began = source.began
        first = insert(private)
        assert before not in events(source, first)
    with opened(settings, began) as source:
        assert source.began == began
        second = insert(private)
        seen = events(source, second)
        assert first in seen
        assert before not in seen


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_earliest_is_all_that_is_there(private: Server, positions: str) -> None:
    purge(private)
    first = insert(private)
    private.query("FLUSH BINARY LOGS")
    second = insert(private)
    with opened(config(private.dsn(), "shop.t", positions=positions, start_position="earliest")) as source:
        seen = events(source, second)
        assert seen.index(first) < seen.index(second)


def test_a_stream_goes_on_over_a_new_binlog_file(private: Server) -> None:
    with opened(config(private.dsn(), "shop.t")) as source:
        for _ in range(3):
            private.query("FLUSH BINARY LOGS")
            events(source, insert(private))


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_a_purged_position_is_lost_and_says_so(private: Server, positions: str) -> None:
    settings = config(private.dsn(), "shop.t", positions=positions)
    with opened(settings) as source:
        began = source.began
    insert(private)
    purge(private)
    with pytest.raises(errors.BinlogPurged) as caught:
        resume(settings, began)
    assert "tidemill recover" in caught.value.fix
    with opened(settings, MysqlSource(settings).renew()) as source:
        events(source, insert(private))


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_the_servers_own_refusal_means_the_same(
    private: Server, positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is purged between our look and the server's: only its words tell what happened."""
    settings = config(private.dsn(), "shop.t", positions=positions)
    with opened(settings) as source:
        began = source.began
    insert(private)
    purge(private)
    place = BinlogPlace.parse(began, _flavor(private))
    ahead, never = place.copy(), place.copy()
    match ahead.gtids:
        case MysqlGtids() as gtids:
            gtids.add_interval(next(iter(gtids))[0], "", 1, 1_000_000)
        case MariadbGtids() as gtids:
            gtids.add(0, 1, 1_000_000)
        case None:
            ahead.file, ahead.offset = str(private.query("SHOW BINARY LOGS")[-1][0]), 99_999_999
            never.file = "binlog.999998"
    monkeypatch.setattr(position, "resume", lambda db, server, place, config: place)
    with pytest.raises(errors.BinlogPurged, match="removed"):
        pump(settings, began)
    with pytest.raises(PositionLost):
        pump(settings, ahead.text())
    if positions == "file":
        with pytest.raises(PositionLost):
            pump(settings, never.text())


def pump(settings: MysqlConfig, place: str) -> None:
    """Decodes until the server refuses."""
    with opened(settings, place) as source:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            list(source.changes(0.1))


def test_a_purge_that_took_nothing_of_ours_does_no_harm(private: Server) -> None:
    settings = config(private.dsn(), "shop.t", positions="gtid")
    insert(private)
    with opened(settings) as source:
        began = source.began
    purge(private)
    with opened(settings, began) as source:
        events(source, insert(private))


def test_how_far_an_idle_stream_came_saves_a_position_whose_binlog_is_gone(private: Server) -> None:
    """Changes of other tables only: nothing to append to the log, but the server may purge them."""
    settings = config(private.dsn(), "shop.t")
    with opened(settings) as source:
        after = source.began
    insert(private)
    confirmed = MysqlSource(settings).renew()
    purge(private)
    with opened(settings, after, confirmed) as source:
        assert source.began == confirmed
        events(source, insert(private))


def test_a_file_of_another_server_is_no_place_here(private: Server) -> None:
    settings = config(private.dsn(), "shop.t", positions="file")
    with opened(settings) as source:
        here = BinlogPlace.parse(source.began, Flavor.MYSQL)
    here.server = UUID
    with pytest.raises(errors.OtherServer, match=UUID):
        resume(settings, here.text())


def test_a_byte_beyond_the_end_and_a_file_that_never_was_are_no_places(private: Server) -> None:
    settings = config(private.dsn(), "shop.t", positions="file")
    with opened(settings) as source:
        here = BinlogPlace.parse(source.began, Flavor.MYSQL)
    beyond, never = here.copy(), here.copy()
    beyond.offset += 1_000_000
    never.file = "binlog.999998"
    for place in (beyond, never):
        with pytest.raises(errors.OtherServer):
            resume(settings, place.text())


def test_transactions_that_the_server_lacks_mean_another_server(private: Server) -> None:
    settings = config(private.dsn(), "shop.t", failover_wait_seconds=0.2)
    with opened(settings) as source:
        began = source.began
    known, _, _ = began.partition("#")
    more = f"{known},{UUID}:1-5" if private.name == "MySQL" else f"{known},77-1-5"
    with pytest.raises(errors.OtherServer) as caught:
        resume(settings, BinlogPlace.parse(more, _flavor(private)).text())
    assert "replica" in caught.value.fix
    assert isinstance(caught.value, PositionLost)


def test_a_position_of_the_other_flavour_means_another_server(private: Server) -> None:
    foreign = "0-1-5" if private.name == "MySQL" else f"{UUID}:1-5"
    with pytest.raises(errors.OtherServer, match=r"another kind|lacks"):
        resume(config(private.dsn(), "shop.t", failover_wait_seconds=0.2), BinlogPlace.parse(
            foreign, Flavor.MARIADB if private.name == "MySQL" else Flavor.MYSQL).text())  # fmt: skip


def test_a_start_position_is_taken_or_refused_at_the_first_start_only(private: Server) -> None:
    settings = config(private.dsn(), "shop.t")
    with opened(settings) as source:
        began = source.began
    row = insert(private)
    with opened(config(private.dsn(), "shop.t", start_position=began)) as source:
        events(source, row)
    nowhere = f"{UUID}:1-9" if private.name == "MySQL" else "9-9-9"
    with (
        pytest.raises(SetupError, match="start_position"),
        opened(config(private.dsn(), "shop.t", start_position=nowhere, failover_wait_seconds=0.2)),
    ):
        pass
    with opened(config(private.dsn(), "shop.t", start_position="earliest"), began) as source:
        assert source.began == began


def test_a_start_position_by_file_stays_a_file(private: Server) -> None:
    purge(private)
    row = insert(private)
    (file, *_), *_ = private.query("SHOW BINARY LOGS")
    with opened(config(private.dsn(), "shop.t", start_position=f"{file}:4")) as source:
        assert source.began.startswith(f"{file}:4@")
        events(source, row)


def read_to_the_end(server: Server, settings: MysqlConfig, after: str | None = None) -> str:
    """The position behind a row that is written now."""
    with opened(settings, after) as source:
        decoder = source.decoder
        insert(server)
        end = time.monotonic() + 120
        while decoder.place.is_at(BinlogPlace.parse(source.began, _flavor(server))) or not decoder.idle:
            assert time.monotonic() < end, "the row does not come"
            list(source.changes(0.1))
        return decoder.place.text()


def next_second(server: Server) -> None:
    """Binlog files tell when they were made by the second."""
    (now,) = server.query("SELECT UNIX_TIMESTAMP()")[0]
    while server.query("SELECT UNIX_TIMESTAMP()")[0][0] == now:
        time.sleep(0.05)


@pytest.mark.parametrize("positions", ["gtid", "file"])
@pytest.mark.parametrize("captured", ["nothing", "a row"])
def test_numbers_that_a_reset_gives_out_again_are_no_place_to_go_on(
    private: Server, positions: str, captured: str
) -> None:
    reset = "RESET BINARY LOGS AND GTIDS" if private.name == "MySQL" else "RESET MASTER"
    settings = config(private.dsn(), "shop.t", positions=positions, failover_wait_seconds=0.2)
    private.query(reset)
    insert(private)
    if captured == "nothing":
        with opened(settings) as source:
            here = str(source.began)
    else:
        here = read_to_the_end(private, settings)
    resume(settings, here)
    next_second(private)
    private.query(reset)
    for _ in range(5):
        insert(private)
    with pytest.raises(errors.OtherServer, match="another history") as caught:
        resume(settings, here)
    assert "RESET" in caught.value.fix
    assert "copy the tables" in caught.value.fix
    again = read_to_the_end(private, settings, MysqlSource(settings).renew())
    resume(settings, again)


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_a_reset_is_noticed_also_after_the_new_binlog_was_purged_beyond_our_file(
    private: Server, positions: str
) -> None:
    """The numbers that were purged are in our set, and so is nothing that was not: only that some of ours are left."""
    reset = "RESET BINARY LOGS AND GTIDS" if private.name == "MySQL" else "RESET MASTER"
    settings = config(private.dsn(), "shop.t", positions=positions, failover_wait_seconds=0.2)
    private.query(reset)
    for _ in range(5):
        insert(private)
    here = read_to_the_end(private, settings)
    private.query(reset)
    insert(private)
    private.query("FLUSH BINARY LOGS")
    purge(private)
    for _ in range(10):
        insert(private)
    expected = errors.OtherServer if positions == "gtid" else errors.BinlogPurged
    with pytest.raises(expected, match="another history" if positions == "gtid" else "purged") as caught:
        resume(settings, here)
    assert "copy the tables" in caught.value.fix


@pytest.mark.parametrize("captured", ["nothing", "a row"])
@pytest.mark.parametrize("later", ["nothing", "a row"])
def test_a_purge_of_what_was_read_is_no_reset(private: Server, captured: str, later: str) -> None:
    """Purged up to exactly what was read, and beyond the file where it stood."""
    settings = config(private.dsn(), "shop.t", positions="gtid")
    insert(private)
    if captured == "nothing":
        with opened(settings) as source:
            here = str(source.began)
    else:
        here = read_to_the_end(private, settings)
    purge(private)
    private.query("FLUSH BINARY LOGS")
    purge(private)
    if later == "a row":
        insert(private)
    resume(settings, here)
    read_to_the_end(private, settings, here)


def test_a_purge_of_what_was_passed_over_is_no_reset(private: Server, tmp_path: Path) -> None:
    """What an operator gave up was not read: it stands later than the place where we read last."""
    settings = config(private.dsn(), "shop.t", positions="gtid")
    source = MysqlSource(settings)
    for by in ("name", "next"):
        here = Position(read_to_the_end(private, settings))
        private.query("FLUSH BINARY LOGS")
        insert(private)
        through = Position(str(source.renew()).partition("#")[0]) if by == "name" else None
        with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as schemas:
            passed = source.pass_over(here, through, schemas, confirmed=None).to
        purge(private, rotate=False)
        resume(settings, passed)


@pytest.mark.parametrize(("kind", "positions"), sample([(kind, by) for kind in KINDS for by in ("gtid", "file")]))
def test_a_server_that_was_put_back_to_an_earlier_state_is_noticed(kind: str, positions: str, tmp_path: Path) -> None:
    with private_server(kind) as server:
        server.query("CREATE DATABASE shop")
        server.query(TABLE, database="shop")
        settings = config(server.dsn(), "shop.t", positions=positions, failover_wait_seconds=0.2)
        earlier = read_to_the_end(server, settings)
        server.stop()
        shutil.copytree(server.data, tmp_path / "backup")
        server.start()
        restarted = read_to_the_end(server, settings, earlier)
        server.stop()
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "backup", server.data)
        time.sleep(1)  # the server is down: nothing else tells that the second is another one
        server.start()
        for _ in range(5):
            insert(server)
        with pytest.raises(errors.OtherServer, match="another history"):
            resume(settings, restarted)
        resume(settings, earlier)


def test_a_mariadb_of_the_same_server_id_is_another_server() -> None:
    with private_server("mariadb") as one, private_server("mariadb") as two:
        for server in (one, two):
            server.query("CREATE DATABASE shop")
            server.query(TABLE, database="shop")
            next_second(server)
        settings = config(one.dsn(), "shop.t", failover_wait_seconds=0.2)
        two.query("FLUSH BINARY LOGS")
        here = read_to_the_end(one, settings)
        for _ in range(5):
            insert(two)
        with pytest.raises(errors.OtherServer, match="same server_id"):
            resume(config(two.dsn(), "shop.t", id=settings.id), here)


def test_a_position_of_an_earlier_version_goes_on_without_a_witness(private: Server) -> None:
    for positions in ("gtid", "file"):
        settings = config(private.dsn(), "shop.t", positions=positions)
        here = BinlogPlace.parse(read_to_the_end(private, settings), _flavor(private))
        here.seen, here.created = None, 0
        assert "#" not in here.text()
        assert "/" not in here.text()
        assert read_to_the_end(private, settings, here.text()) != here.text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_gtid_position_goes_on_at_the_replica_that_took_over(kind: str) -> None:
    with private_server(kind) as primary, private_server(kind, server_id=2, log_slave_updates=True) as replica:
        primary.query("CREATE DATABASE shop")
        primary.query(TABLE, database="shop")
        follow(replica, primary)
        settings = config(primary.dsn(), "shop.t")
        with opened(settings) as source:
            first = insert(primary)
            events(source, first)
        here = MysqlSource(settings).renew()
        second = insert(primary)
        wait_for(replica, second)
        primary.stop()
        third = insert(replica)
        with opened(config(replica.dsn(), "shop.t", id=settings.id), here) as source:
            seen = events(source, third)
            assert first not in seen
            assert second in seen


def follow(replica: Server, primary: Server) -> None:
    if replica.name == "MySQL":
        replica.execute(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary.port}, SOURCE_USER='root',"
            " SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
        )
    else:
        replica.execute(
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='root',"
            " MASTER_USE_GTID=slave_pos",
            "START SLAVE",
        )


def wait_for(server: Server, value: bytes) -> None:
    deadline = time.monotonic() + 120
    while True:
        rows = server.query("SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'shop' AND TABLE_NAME = 't'")
        if rows and server.query("SELECT 1 FROM shop.t WHERE v = %s", [value.decode()]):
            break
        assert time.monotonic() < deadline, "the replica does not follow"
        time.sleep(0.05)
    server.execute(
        *(["STOP REPLICA", "RESET REPLICA ALL"] if server.name == "MySQL" else ["STOP SLAVE", "RESET SLAVE ALL"])
    )


def _flavor(server: Server) -> Flavor:
    return Flavor.MYSQL if server.name == "MySQL" else Flavor.MARIADB


def test_the_further_of_two_positions_counts_only_if_it_goes_on_from_the_other() -> None:
    def gtids(text: str) -> BinlogPlace:
        return BinlogPlace(Flavor.MYSQL, MysqlGtids.parse(text))

    def domains(text: str) -> BinlogPlace:
        return BinlogPlace(Flavor.MARIADB, MariadbGtids.parse(text))

    def file(name: str, offset: int, server: str = "a") -> BinlogPlace:
        return BinlogPlace(Flavor.MYSQL, None, name, offset, server)

    cases = [
        (gtids(f"{UUID}:1-5"), gtids(f"{UUID}:1-9"), 1),
        (gtids(f"{UUID}:1-9"), gtids(f"{UUID}:1-5"), 0),
        (gtids(f"{UUID}:1-5"), gtids(f"{UUID}:3-9"), 0),
        (domains("0-1-5"), domains("0-1-7,1-1-1"), 1),
        (domains("0-1-5,1-1-3"), domains("0-1-7"), 0),
        (file("b.999999", 9), file("b.1000000", 4), 1),
        (file("b.000002", 9), file("b.000002", 8), 0),
        (file("b.000002", 9), file("b.000003", 8, "b"), 0),
    ]
    for after, confirmed, which in cases:
        assert position.further(after, confirmed) is (after, confirmed)[which]
    assert position.further(None, None) is None
    assert position.further(None, cases[0][1]) is cases[0][1]
