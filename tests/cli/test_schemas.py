"""`tidemill schemas` over a registry and a log, without a database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.blocks import make_change, make_table
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogConfig, LogWriter
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://u@127.0.0.1/db", tables: [public.orders]}}}}
  sinks: [{{type: stdout, config: {{id: out}}}}]
  state_dir: {state}
"""


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """`orders` has versions 1 at offsets 0 to 4 and 15 to 19, and 2 from 5 to 14; `other` comes at 10."""
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT.format(state=tmp_path / "state"))
    (pipeline,) = config.load(file)
    pipeline.state_path.mkdir(parents=True)
    registry = SchemaRegistry(pipeline.state_path / "registry.sqlite")
    log = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({"fsync": False}))
    steps = [(make_table(),), (make_table(version=2),), (make_table(version=2), make_table("other")), (make_table(),)]
    for number, tables in enumerate(steps, 1):
        known = [registry.register(table, Position(f"0/{number}00")) for table in tables]
        log.append(make_change(5, tables=known, number=number))
    log.close()
    registry.close()
    return file


def test_ls_shows_the_newest_version_of_every_table(tidemill: Terminal, path: Path) -> None:
    listed = tidemill("schemas", "ls", path, "--json").json["schemas"]
    assert [(each["table"], each["version"], each["sequence"]) for each in listed] == [
        ("public.orders", 2, 2), ("public.other", 1, 3),
    ]  # fmt: skip
    assert len(listed[0]["fingerprint"]) == 64
    assert "public.other" in tidemill("schemas", "ls", path).out


def test_show_is_a_version_with_its_columns(tidemill: Terminal, path: Path) -> None:
    shown = tidemill("schemas", "show", path, "public.orders", "--version", 1, "--json").json
    assert (shown["version"], shown["position"], len(shown["columns"])) == (1, "0/100", 8)
    assert shown["columns"][0] == {
        "name": "id", "type": "bigint", "arrow": "int64", "json": "number", "nullable": False, "generated": False,
        "key": True,
    }  # fmt: skip
    newest = tidemill("schemas", "show", path, "public.orders").out
    assert "version 2" in newest
    assert "added_in_2" in newest


def test_versions_say_how_each_goes_with_the_one_before(tidemill: Terminal, path: Path) -> None:
    first, second = tidemill("schemas", "versions", path, "public.orders", "--json").json["versions"]
    assert first["compatibility"] is None
    assert second["compatibility"] == {"compatibility": "full", "not_backward": [], "not_forward": []}
    assert "full" in tidemill("schemas", "versions", path, "public.orders").out


def test_diff_names_what_changed(tidemill: Terminal, path: Path) -> None:
    found = tidemill("schemas", "diff", path, "public.orders", 1, 2, "--json").json
    assert found["changes"] == [{"change": "added", "column": "added_in_2", "old": "", "new": "text"}]
    assert "compatible: full" in tidemill("schemas", "diff", path, "public.orders", 1, 2).out


@pytest.mark.parametrize(("offset", "version"), [(0, 1), (4, 1), (5, 2), (14, 2), (15, 1), (19, 1)])
def test_at_an_offset_it_is_what_the_events_there_were_decoded_with(
    tidemill: Terminal, path: Path, offset: int, version: int
) -> None:
    """Also where a structure comes back: then it is the version that it was."""
    assert tidemill("schemas", "at", path, "public.orders", "--offset", offset, "--json").json["version"] == version


@pytest.mark.parametrize(
    ("position", "version"),
    [("0/50", 1), ("0/100", 1), ("0/1FF", 1), ("0/200", 2), ("0/3FF", 2), ("0/400", 1), ("1/0", 1)],
)
def test_at_a_position_it_is_that_of_the_last_event_committed_before(
    tidemill: Terminal, path: Path, position: str, version: int
) -> None:
    found = tidemill("schemas", "at", path, "public.orders", "--position", position, "--json").json
    assert found["version"] == version


def test_at_a_sequence_it_is_the_newest_that_is_not_above_it(tidemill: Terminal, path: Path) -> None:
    found = [
        tidemill("schemas", "at", path, "public.orders", "--sequence", sequence, "--json").json["version"]
        for sequence in (1, 2, 3)
    ]
    assert found == [1, 2, 2]
    assert tidemill("schemas", "at", path, "public.other", "--offset", 2, "--json").json["version"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "public.nosuch"), "There are: public.orders, public.other."),
        (("show", "public.orders", "--version", 9), "It has: 1, 2."),
        (("at", "public.orders", "--offset", 20), "the log, which has 0 to 19"),
        (("at", "public.orders"), "name an offset, a position or a sequence"),
        (("at", "public.other", "--sequence", 2), "has no such version"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(
    tidemill: Terminal, path: Path, arguments: tuple[object, ...], words: str
) -> None:
    command, *rest = arguments
    refused = tidemill("schemas", command, path, *rest)
    assert refused.code == 2
    assert words in refused.err


def test_where_servers_share_the_state_store_the_registry_is_there(
    tidemill: Terminal, path: Path, postgres18: Postgres
) -> None:
    with postgres18.database("shared_registry") as dsn:
        path.write_text(f"{path.read_text()}  state_uri: {dsn}\n")
        (pipeline,) = config.load(path)
        listed = tidemill("schemas", "ls", path, "--json").json["schemas"]
        assert [each["sequence"] for each in listed] == [2, 3], "as long as only the file has it, it is read"
        with closing(pipeline.open_registry()) as registry:  # as capture does
            assert registry.register(make_table("third"), Position("0/900")).sequence == 4
        pipeline.registry_path.unlink()  # another server's directory has none
        listed = tidemill("schemas", "ls", path, "--json").json["schemas"]
        assert [each["sequence"] for each in listed] == [2, 3, 4]
