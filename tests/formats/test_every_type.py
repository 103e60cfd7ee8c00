"""Values that real servers sent, of every type they have, through every format and back."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest

from tests.decoders.binlog import test_types as test_mysql_types
from tests.decoders.binlog.test_types import stored
from tests.decoders.pgoutput import test_types
from tests.decoders.pgoutput.kinds import SETUP
from tests.formats.readers import SOURCE, expected, read_batch, read_one
from tests.formats.samples import TYPES
from tests.formats.test_conformance import TYPED, make, wanted
from tests.support.pgstream import decode, record
from tidemill.decoders._shared.mysql import types
from tidemill.decoders.pgoutput.messages import Relation
from tidemill.lab.servers.postgres import Postgres
from tidemill.model import postgres_types
from tidemill.model.block import Block
from tidemill.model.change import Committed
from tidemill.model.table import Table
from tidemill.sources.postgres.catalog import RelationCatalog

__all__ = ["stored"]  # a fixture


@pytest.fixture(scope="module")
def blocks(postgres18: Postgres) -> Iterator[list[Block]]:
    """A block per type; the values of each come from a seed that a failure prints."""
    with postgres18.database("every_type") as dsn, test_types._session(dsn) as db:
        for statement in SETUP:
            db.execute(statement.encode())
        test_types._create(db, 18)
        catalog = RelationCatalog(lambda: test_types._session(dsn), "tests")

        def describe(relation: Relation, names: Mapping[int, str]) -> Table:
            return catalog.describe(relation, names).with_fingerprint()

        stream = record(postgres18, "every_type", dbname="every_type", protocol=3)
        found: list[Block] = []
        for change in decode(stream, describe, capacity=1 << 16):
            assert isinstance(change, Committed)
            found += change.blocks
        catalog.close()
        yield found


@pytest.mark.parametrize("name", TYPED)
def test_what_the_database_sent_comes_back_from_a_batch(name: str, blocks: list[Block]) -> None:
    assert len(blocks) > 80
    for block in blocks:
        format = make(name)
        read = read_batch(format, block.table, format.batch(block, SOURCE).to_pybytes())
        kind = block.table.columns[1].type.native
        assert read == wanted(name, expected(block)), f"seed {test_types.SEED}: {kind} differs"


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_what_the_database_sent_comes_back_from_single_events(name: str, blocks: list[Block]) -> None:
    pick = random.Random(test_types.SEED)
    for block in blocks:
        format = make(name)
        documents = format.encode(block, SOURCE)
        rows = wanted(name, expected(block))
        for row in pick.sample(range(block.rows), min(10, block.rows)):
            read = read_one(format, block.table, documents[row].as_py())
            assert read == rows[row], f"seed {test_types.SEED}: {block.table.columns[1].type.native} differs"


@pytest.mark.parametrize("name", TYPED)
def test_what_mysql_and_mariadb_sent_comes_back_from_a_batch(name: str, stored: test_mysql_types.Stored) -> None:
    blocks = [block for found in stored.blocks.values() for block in found]
    assert len(blocks) > 50
    for block in blocks:
        format = make(name)
        read = read_batch(format, block.table, format.batch(block, SOURCE).to_pybytes())
        kind = block.table.columns[1].type.native
        assert read == wanted(name, expected(block)), f"seed {test_mysql_types.SEED}: {kind} differs"


def test_every_arrow_type_of_both_sources_is_among_those_tried() -> None:
    tried = {kind for kind, _, _ in TYPES.values()}
    wanted = {arrow for _, arrow, _, _ in postgres_types.BUILT_IN.values()}
    wanted |= {arrow for arrow, _, _ in types.BUILT_IN.values()}
    assert wanted - {pa.list_(pa.float32())} <= tried
