"""Sets of GTIDs against Python's own sets, and the text of positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.decoders._shared.mysql.gtid import Flavor, MariadbGtids, MysqlGtids
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.errors import ConfigError

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "8a94f357-aab4-11df-86ab-c80aa9429562"

# Few uuids and small numbers, so that intervals touch, overlap and leave gaps.
ids = st.tuples(st.sampled_from([A, B]), st.integers(1, 25), st.sampled_from(["", "", "nightly", "a_1"]))
sets = st.sets(ids, max_size=40)
triples = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 3), st.integers(1, 30)))


def mysql(members: set[tuple[str, int, str]]) -> MysqlGtids:
    made = MysqlGtids()
    for member in members:
        made.add(*member)
    return made


def members(held: MysqlGtids) -> set[tuple[str, int, str]]:
    return {(uuid, number, tag) for uuid, tag, first, past in held for number in range(first, past)}


def prefixes(last: dict[int, tuple[int, int]]) -> set[tuple[int, int]]:
    return {(domain, number) for domain, (_, top) in last.items() for number in range(1, top + 1)}


@given(sets, sets)
def test_mysql_sets_behave_like_sets(left: set[tuple[str, int, str]], right: set[tuple[str, int, str]]) -> None:
    a, b = mysql(left), mysql(right)
    assert members(a) == left
    assert members(a.union(b)) == left | right
    assert members(a.minus(b)) == left - right
    assert a.is_subset(b) == (left <= right)
    assert (a == b) == (left == right)
    assert bool(a) == bool(left)
    assert members(a) == left, "algebra leaves its operands alone"


@given(sets)
def test_a_mysql_set_survives_its_text(held: set[tuple[str, int, str]]) -> None:
    text = str(mysql(held))
    assert MysqlGtids.parse(text) == mysql(held)
    assert str(MysqlGtids.parse(text)) == text
    assert MysqlGtids.parse(text.upper().replace(",", " ,\n ")) == mysql(held)


@given(sets, ids)
def test_contains_is_membership(held: set[tuple[str, int, str]], one: tuple[str, int, str]) -> None:
    assert mysql(held).contains(*one) == (one in held)


@given(st.lists(ids, max_size=60))
def test_text_written_after_every_addition_is_the_text_of_the_whole(additions: list[tuple[str, int, str]]) -> None:
    """What `str` remembers between additions never shows."""
    growing = MysqlGtids()
    for count, one in enumerate(additions, 1):
        growing.add(*one)
        assert str(growing) == str(mysql(set(additions[:count])))


def test_text_of_a_growing_set_with_many_intervals_is_right() -> None:
    growing = MysqlGtids.parse(f"{A}:1-5:10-20:30,{B}:7")
    for number in range(31, 2000):
        growing.add(A, number)
        assert str(growing) == f"{A}:1-5:10-20:30-{number},{B}:7"
    growing.add(B, 8)
    assert str(growing) == f"{A}:1-5:10-20:30-1999,{B}:7-8"
    growing.add(A, 2000)
    assert str(growing) == f"{A}:1-5:10-20:30-2000,{B}:7-8"


def test_tags_stand_behind_the_untagged_intervals_of_their_uuid() -> None:
    held = mysql({(A, 1, ""), (A, 2, ""), (A, 5, ""), (A, 1, "zeta"), (A, 1, "alpha"), (A, 2, "alpha")})
    assert str(held) == f"{A}:1-2:5:alpha:1-2:zeta:1"


def test_a_set_without_tags_is_encoded_as_servers_before_8_3_read_it() -> None:
    held = MysqlGtids.parse(f"{A}:1-5:7")
    uuid = bytes.fromhex(A.replace("-", ""))
    numbers = [2, 1, 6, 7, 8]
    assert held.encode() == (1).to_bytes(8, "little") + uuid + b"".join(n.to_bytes(8, "little") for n in numbers)


def test_a_set_with_tags_says_so_in_its_first_and_last_byte_of_the_count() -> None:
    encoded = MysqlGtids.parse(f"{A}:1:ab:3").encode()
    assert encoded[:8] == bytes([1, 2, 0, 0, 0, 0, 0, 1])
    assert encoded[8 + 16] == 0, "the untagged entry has an empty tag"
    assert encoded[8 + 16 + 1 + 24 + 16 :][:3] == bytes([4]) + b"ab"


@pytest.mark.parametrize(
    "text", ["x", f"{A}", f"{A}:", f"{A}:0", f"{A}:5-3", f"{A}:1-", f"{A}:tag", f"{A}:1:tag", "0-1-5", f"{A}:a:b:1"]
)
def test_what_is_no_mysql_set_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        MysqlGtids.parse(text)


@given(triples, triples)
def test_mariadb_positions_behave_like_prefixes_of_their_domains(
    left: dict[int, tuple[int, int]], right: dict[int, tuple[int, int]]
) -> None:
    a, b = MariadbGtids(left), MariadbGtids(right)
    union = a.union(b)
    assert prefixes({d: (s, n) for d, s, n in union}) == prefixes(left) | prefixes(right)
    lacking = {(d, n) for d, (first, last) in a.minus(b).items() for n in range(first, last + 1)}
    assert lacking == prefixes(left) - prefixes(right)
    assert a.is_subset(b) == (prefixes(left) <= prefixes(right))
    assert MariadbGtids.parse(str(a)) == a
    assert all(a.contains(d, n) for d, n in prefixes(left))


def test_mariadb_keeps_the_last_of_a_domain_and_orders_by_domain() -> None:
    held = MariadbGtids.parse("5-2-13, 0-1-270")
    held.add(0, 3, 271)
    assert str(held) == "0-3-271,5-2-13"
    assert str(MariadbGtids.parse("0-1-3,0-2-9,0-3-5")) == "0-2-9"


@pytest.mark.parametrize("text", ["0-1", "a-b-c", f"{A}:1", "0-1-2-3", "4294967296-1-1"])
def test_what_is_no_mariadb_position_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        MariadbGtids.parse(text)


@pytest.mark.parametrize(
    ("text", "flavor"),
    [
        (f"{A}:1-77", Flavor.MYSQL),
        ("empty", Flavor.MYSQL),
        ("empty", Flavor.MARIADB),
        ("0-1-270,5-2-13", Flavor.MARIADB),
        (f"binlog.000003:1547@{A}", Flavor.MYSQL),
        ("mariadb-bin.000012:4@7", Flavor.MARIADB),
    ],
)
def test_a_position_survives_its_text(text: str, flavor: Flavor) -> None:
    assert BinlogPlace.parse(text, flavor).text() == text


def test_a_file_and_byte_of_an_operator_need_no_server() -> None:
    place = BinlogPlace.parse("binlog.000003:1547", Flavor.MYSQL)
    assert (place.gtids, place.file, place.offset, place.server) == (None, "binlog.000003", 1547, "")


@pytest.mark.parametrize("text", ["", "now", "binlog:3", "16/B374D848"])
def test_what_is_no_position_says_how_one_looks(text: str) -> None:
    with pytest.raises(ConfigError, match=r"binlog\.000003:1547"):
        BinlogPlace.parse(text, Flavor.MYSQL)
