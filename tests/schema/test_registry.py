"""One suite for both places of a registry: a SQLite file, and a state store in a real PostgreSQL."""

from __future__ import annotations

import decimal
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tidemill.contracts import history_of
from tidemill.errors import RegistryError, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.process import free_port
from tidemill.model.position import Position
from tidemill.model.table import Column, Initial, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.schema.registry import SchemaRegistry
from tidemill.state import open_registry, open_store

BIGINT = DataType("bigint", pa.int64(), JsonForm.NUMBER)
NUMERIC = DataType("numeric(12,2)", pa.decimal128(12, 2), JsonForm.STRING)


def table(name: str = "orders", *columns: str) -> Table:
    return Table("shop", "public", name, tuple(Column(c, BIGINT) for c in ("id", *columns)), ("id",))


def where(lsn: int) -> Position:
    return Position(f"0/{lsn:X}")


_names = itertools.count(1)
Opener = Callable[[], SchemaRegistry]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "registry.sqlite")
        return
    server: Postgres = request.getfixturevalue("postgres18")
    with server.database(f"registry_{next(_names)}") as dsn:
        yield dsn


def open_place(place: str, pipeline: str = "orders") -> SchemaRegistry:
    return SchemaRegistry(open_registry(place, pipeline) if "://" in place else Path(place))


@pytest.fixture
def opener(place: str) -> Iterator[Opener]:
    """Each call is another process, as far as the registry can tell."""
    opened: list[SchemaRegistry] = []

    def another() -> SchemaRegistry:
        opened.append(open_place(place))
        return opened[-1]

    yield another
    for registry in opened:
        registry.close()


@pytest.fixture
def registry(opener: Opener) -> SchemaRegistry:
    return opener()


def test_a_new_table_gets_its_first_version_and_the_next_sequence(registry: SchemaRegistry) -> None:
    orders = registry.register(table(), where(1))
    items = registry.register(table("items"), where(2))
    assert (orders.version, orders.sequence) == (1, 1)
    assert (items.version, items.sequence) == (1, 2)
    assert len(orders.fingerprint) == 64


def test_registering_the_same_structure_again_changes_nothing(registry: SchemaRegistry) -> None:
    first = registry.register(table(), where(1))
    again = registry.register(table(), where(9))
    assert again == first
    assert registry.history("public.orders")[0].position == where(1)
    assert registry.sequence() == 1


def test_another_structure_is_the_next_version(registry: SchemaRegistry) -> None:
    registry.register(table(), where(1))
    second = registry.register(table("orders", "amount"), where(5))
    assert (second.version, second.sequence) == (2, 2)


def test_a_table_that_returns_to_an_earlier_structure_has_that_version_again(registry: SchemaRegistry) -> None:
    first = registry.register(table(), where(1))
    registry.register(table("orders", "amount"), where(5))
    assert registry.register(table(), where(9)) == first


def test_a_structure_that_returns_says_what_was_renamed_this_time(registry: SchemaRegistry) -> None:
    first = registry.register(table(), where(1))
    registry.register(replace(table("orders", "amount"), renamed=(("id", "amount"),)), where(5))
    back = registry.register(replace(table(), renamed=(("amount", "id"),)), where(9))
    assert (back.version, back.sequence, back.renamed) == (first.version, first.sequence, (("amount", "id"),))


@pytest.mark.parametrize(
    "change",
    [
        {"columns": (Column("id", NUMERIC),)},
        {"columns": (Column("id", BIGINT, nullable=False),)},
        {"columns": (Column("id", BIGINT, generated=True),)},
        {"key": ()},
        {"identity": "full"},
        {"database": "other"},
    ],
)
def test_whatever_changes_the_structure_changes_the_version(
    registry: SchemaRegistry, change: dict[str, object]
) -> None:
    registry.register(table(), where(1))
    assert registry.register(replace(table(), **change), where(2)).version == 2  # type: ignore[arg-type]


def test_a_lookup_finds_the_greatest_sequence_not_above_the_one_asked(registry: SchemaRegistry) -> None:
    registry.register(table(), where(1))  # 1
    registry.register(table("items"), where(2))  # 2
    registry.register(table("orders", "amount"), where(3))  # 3
    versions = []
    for sequence in range(5):
        found = registry.at("public.orders", sequence)
        versions.append(found.table.version if found else None)
    assert versions == [None, 1, 1, 2, 2]


def test_a_registration_tells_the_position_it_was_first_met_at(registry: SchemaRegistry) -> None:
    registry.register(table(), where(1))
    registry.register(table("orders", "amount"), where(5))
    assert [(r.table.version, r.position) for r in registry.history("public.orders")] == [(1, "0/1"), (2, "0/5")]


def test_what_is_read_back_is_the_table_that_was_registered_types_and_all(registry: SchemaRegistry) -> None:
    columns = (Column("id", BIGINT, nullable=False), Column("Größe", NUMERIC), Column("sum", NUMERIC, generated=True))
    stored = registry.register(Table("shop", "Süd", "o.r", columns, ("id",), "full"), where(1))
    found = registry.get("Süd.o.r", 1)
    assert found is not None
    assert found.table == stored


def test_listing_gives_each_table_once_at_its_newest(registry: SchemaRegistry) -> None:
    registry.register(table(), where(1))
    registry.register(table("items"), where(2))
    registry.register(table("orders", "amount"), where(3))
    assert [(r.table.name, r.table.version) for r in registry.tables()] == [("items", 1), ("orders", 2)]
    latest = registry.latest("public.orders")
    assert latest is not None
    assert latest.table.version == 2
    assert registry.latest("public.nothing") is None


def test_numbers_survive_a_restart(opener: Opener) -> None:
    for version in (1, 2, 3):
        registry = opener()
        columns = [f"c{n}" for n in range(version)]
        assert registry.register(table("orders", *columns), where(version)).sequence == version
        registry.close()


def test_a_reader_sees_what_capture_registers_meanwhile(registry: SchemaRegistry, opener: Opener) -> None:
    registry.register(table(), where(1))
    reader = opener()
    assert reader.sequence() == 1
    registry.register(table("items"), where(2))
    assert reader.sequence() == 2


def test_a_reader_does_not_make_a_registry_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(RegistryError):
        SchemaRegistry(tmp_path / "registry.sqlite", create=False)
    assert not (tmp_path / "registry.sqlite").exists()


def test_a_file_that_is_no_registry_is_an_error_that_says_which(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(RegistryError, match=r"registry\.sqlite"):
        SchemaRegistry(path).tables()


def register_all(place: str) -> None:
    registry = open_place(place)
    for number in range(20):
        registry.register(table("orders", *[f"c{n}" for n in range(number)]), where(number))
    registry.close()


@pytest.mark.slow  # many processes
def test_processes_that_register_the_same_structures_agree_on_their_numbers(
    registry: SchemaRegistry, place: str
) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=register_all, args=(place,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    history = registry.history("public.orders")
    assert [r.table.version for r in history] == list(range(1, 21))
    assert [r.table.sequence for r in history] == list(range(1, 21))


def register_own(place: str, name: str) -> None:
    registry = open_place(place)
    for number in range(20):
        registry.register(table(name, *[f"c{n}" for n in range(number)]), where(number))
    registry.close()


@pytest.mark.slow  # many processes
def test_processes_that_register_different_tables_at_once_give_no_number_twice(
    registry: SchemaRegistry, place: str
) -> None:
    names = ("a", "b", "c")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=register_own, args=(place, name)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    histories = [registry.history(f"public.{name}") for name in names]
    assert [[r.table.version for r in history] for history in histories] == [list(range(1, 21))] * 3
    for history in histories:
        assert [r.table.sequence for r in history] == sorted(r.table.sequence for r in history)
    assert sorted(r.table.sequence for history in histories for r in history) == list(range(1, 61))


def test_notes_of_a_source_come_back_in_order_and_are_forgotten_from_a_place_on(opener: Opener) -> None:
    with closing(opener()) as registry:
        assert registry.structures() == []
        registry.keep_structures(Position("a:4"), {"one": b"1", "two": b"2"})
        registry.keep_structures(Position("a:9"), {"one": None})
    with closing(opener()) as registry:
        found = [(note.position, note.name, note.document) for note in registry.structures()]
        assert found == [("a:4", "one", b"1"), ("a:4", "two", b"2"), ("a:9", "one", None)]
        registry.forget_structures(registry.structures()[1].sequence)
        assert [note.position for note in registry.structures()] == ["a:4", "a:4"]
        registry.keep_structures(Position("a:9"), {"one": b"again"})
        assert [note.document for note in registry.structures()] == [b"1", b"2", b"again"]


def test_only_a_store_that_keeps_a_history_of_structures_is_one(tmp_path: Path) -> None:
    with closing(SchemaRegistry(tmp_path / "schemas.sqlite")) as registry:
        assert history_of(registry) is registry

    class Bare:
        register = newest = versions = recall = remember = SchemaRegistry.recall

    with pytest.raises(RegistryError, match="Bare keeps no history"):
        history_of(cast(Any, Bare()))


def test_what_a_source_remembers_of_its_server_survives_and_can_be_forgotten(opener: Opener) -> None:
    with closing(opener()) as registry:
        assert registry.recall("server") is None
        registry.remember("server", b"first")
        registry.remember("server", b"\x00second")
    with closing(opener()) as registry:
        assert registry.recall("server") == b"\x00second"
        registry.remember("server", None)
        assert registry.recall("server") is None


def test_what_old_rows_have_in_a_column_is_kept_with_its_version_and_is_no_structure(registry: SchemaRegistry) -> None:
    def made(origin: str, initial: Initial | None) -> Table:
        plain = table("orders", "level")
        return replace(plain, columns=(plain.columns[0], replace(plain.columns[1], origin=origin, initial=initial)))

    five, seven = Initial(pa.scalar(5, pa.int64())), Initial(pa.scalar(7, pa.int64()))
    first = registry.register(made("16384.2", five), where(1))
    assert first.fingerprint == registry.register(table("orders", "level"), where(2)).fingerprint
    # The catalog no longer tells: what was found out stays, for the same column.
    assert registry.register(made("16384.2", None), where(3)).columns[1].initial == five
    # The column was dropped and added again: another one, in the same structure.
    again = registry.register(made("16384.3", seven), where(4))
    assert (again.version, again.columns[1].initial, again.columns[1].origin) == (1, seven, "16384.3")
    newest = registry.newest("public.orders")
    assert newest is not None
    assert (newest.columns[1].initial, newest.columns[1].origin) == (seven, "16384.3")


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(None, pa.int64()), pa.scalar(decimal.Decimal("1.50"), pa.decimal128(10, 2)), pa.scalar("it's"),
        pa.scalar(b"\x00\xff"), pa.scalar([1, None], pa.list_(pa.int32())),
        pa.scalar(1_709_210_096_789_000, pa.int64()).cast(pa.timestamp("us", "UTC")),
    ],
    ids=lambda value: str(value.type),
)  # fmt: skip
def test_a_table_that_is_read_again_has_the_same_value_for_old_rows(value: pa.Scalar) -> None:
    column = Column("c", DataType("any", value.type, JsonForm.STRING), origin="1.2", initial=Initial(value))
    read = Table.from_json(Table("d", "s", "t", (column,)).to_json()).columns[0]
    assert (read.initial, read.origin) == (Initial(value), "1.2")
    assert Column.from_dict({"name": "c", "nullable": True, "generated": False, **BIGINT.to_dict()}).initial is None


def test_pipelines_of_one_store_count_for_themselves(postgres18: Postgres) -> None:
    with postgres18.database("registries_of_two") as dsn:
        with closing(open_place(dsn)) as orders, closing(open_place(dsn, "items")) as items:
            orders.register(table(), where(1))
            orders.remember("server", b"one")
            orders.keep_structures(where(1), {"t": b"1"})
            assert items.is_empty()
            assert items.register(table("items"), where(1)).sequence == 1
            assert (items.recall("server"), items.structures()) == (None, [])
            assert [each.table.name for each in orders.tables()] == ["orders"]
        with closing(open_store(dsn)) as state:
            state.forget("orders")
        with closing(open_place(dsn)) as orders, closing(open_place(dsn, "items")) as items:
            assert orders.is_empty()
            assert items.sequence() == 1


def test_a_registry_that_was_a_file_is_taken_over_once_with_its_numbers(tmp_path: Path, postgres18: Postgres) -> None:
    path = tmp_path / "registry.sqlite"
    with closing(SchemaRegistry(path)) as file:
        numbered = [file.register(table("orders", *["c"] * n), where(n)) for n in range(2)]
        file.keep_structures(where(3), {"one": b"1", "gone": None})
        file.remember("server", b"\x00\xff")
        structures = file.structures()
    with postgres18.database("registry_of_a_file") as dsn:
        for _ in range(2):  # the second finds what the first took
            with closing(SchemaRegistry(open_registry(dsn, "orders"), earlier=path)) as shared:
                assert shared.versions("public.orders") == numbered
                assert (shared.structures(), shared.recall("server")) == (structures, b"\x00\xff")
        with closing(SchemaRegistry(open_registry(dsn, "orders"), earlier=path)) as shared:
            assert shared.register(table("orders", "new"), where(9)).sequence == 3
        with closing(SchemaRegistry(path)) as file:
            assert file.sequence() == 2, "the file stays as it was"


def test_a_store_that_cannot_be_reached_is_an_error_of_the_registry_and_worth_a_retry() -> None:
    with closing(open_place(f"postgresql://127.0.0.1:{free_port()}/nowhere")) as registry:
        with pytest.raises(RegistryError, match="state store cannot be used") as refused:
            registry.tables()
        assert is_retryable(refused.value)
