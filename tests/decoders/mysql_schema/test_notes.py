"""How the schema history is written down: what is kept comes back, also what an earlier version kept."""

from __future__ import annotations

import pytest

from tidemill.contracts import Structure
from tidemill.decoders.mysql_schema import notes
from tidemill.decoders.mysql_schema.history import TableHistory
from tidemill.model.position import Position


@pytest.mark.parametrize("document", [b'{"high_water_mark": "binlog.7:154"}', b'{"horizon": "binlog.7:154"}'])
def test_the_place_up_to_which_the_catalog_may_be_ahead_is_read_from_notes_of_any_version(document: bytes) -> None:
    history = TableHistory(mariadb=False, fold=False)
    notes.recall(history, Structure(1, Position("binlog.7:154"), "[]", document))
    assert history.high_water_mark == "binlog.7:154"


def test_everything_that_is_kept_comes_back() -> None:
    history, again = TableHistory(mariadb=False, fold=False), TableHistory(mariadb=False, fold=False)
    history.charsets["shop"] = "utf8mb4"  # at a first start nothing is ahead of the binlog: an empty mark
    for number, (name, document) in enumerate(notes.everything(history).items(), 1):
        notes.recall(again, Structure(number, Position("binlog.7:154"), name, document))
    assert (again.high_water_mark, again.charsets) == ("", {"shop": "utf8mb4"})
