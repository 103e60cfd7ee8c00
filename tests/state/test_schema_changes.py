"""Schema changes in the state store: SQLite and PostgreSQL keep the same promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from tests.state.conftest import Opener
from tidemill.contracts.installation import AuditEntry
from tidemill.contracts.schema_change_store import ChangeStatus, Decision, SinkOutcome, StoredChange
from tidemill.model.position import Position
from tidemill.model.quarantine import Quarantine
from tidemill.state import open_installation


def change(offset: int, table: str = "public.orders") -> StoredChange:
    return StoredChange(
        0, offset, Position("0/7"), table, ("add_column",), "ALTER 'ü'", '{"before": 1}', '{"after": 1}', "2026-01-31"
    )


def test_a_change_has_one_number_however_often_it_comes(opener: Opener) -> None:
    first = opener().schema_changes.record("orders", change(7))
    store = opener().schema_changes
    assert (first.number, store.record("orders", change(7))) == (1, first)
    assert store.record("orders", change(7, "public.other")).number == 2
    assert store.record("others", change(7)).number == 1
    assert [each.table for each in store.changes("orders")] == ["public.other", "public.orders"]
    assert store.change("orders", 1) == first
    assert store.change("orders", 3) is None
    assert (first.status, first.text, first.before) == (ChangeStatus.PENDING, "ALTER 'ü'", '{"before": 1}')


def test_a_decision_is_taken_once_whoever_comes_first(opener: Opener) -> None:
    opener().schema_changes.record("orders", change(7))
    stores = [opener().schema_changes for _ in range(4)]
    found: list[StoredChange] = []

    def decide(number: int) -> None:
        decision = (Decision.APPROVED, Decision.REJECTED)[number % 2]
        found.append(stores[number].decide("orders", 1, decision, f"actor {number}", "why", "2026-02-01"))

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({(each.decision, each.actor) for each in found}) == 1
    assert opener().schema_changes.change("orders", 1) == found[0]
    with pytest.raises(KeyError):
        stores[0].decide("orders", 2, Decision.APPROVED, "ann", "", "")


def test_a_decision_and_its_audit_entry_are_there_together_or_not_at_all(opener: Opener, uri: str) -> None:
    opener().schema_changes.record("orders", change(7))
    script = (
        "import sys; from tidemill.state import open_store\n"
        "from tidemill.contracts.installation import AuditEntry\n"
        "from tidemill.contracts.schema_change_store import Decision\n"
        "entry = AuditEntry('now', 'ann', 'approve schema change', 'orders', '1')\n"
        "open_store(sys.argv[1]).schema_changes.decide('orders', 1, Decision.APPROVED, 'ann', 'why', 'now', entry)"
    )
    for failpoint in ("ddl.decision_written", "state.before_commit"):
        killed = subprocess.run(
            [sys.executable, "-c", script, uri], env={**os.environ, "TIDEMILL_CRASH_AT": failpoint}, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        assert _status(opener) is ChangeStatus.PENDING
    with closing(open_installation(uri)) as installation:
        assert installation.audit_trail() == []
        entries = [AuditEntry("now", actor, "approve schema change", "orders", "1", 1) for actor in ("ann", "bob")]
        for entry in entries:
            opener().schema_changes.decide("orders", 1, Decision.APPROVED, entry.actor, "why", "now", entry)
        assert installation.audit_trail() == entries[:1]  # the second decided nothing


def test_the_status_is_what_sinks_did_and_a_failure_counts_first(opener: Opener) -> None:
    store = opener().schema_changes
    store.record("orders", change(7))
    store.note("orders", 1, "a", SinkOutcome(("ALTER TABLE t",)))
    assert _status(opener) is ChangeStatus.PENDING
    store.decide("orders", 1, Decision.APPROVED, "policy", "", "")
    assert _status(opener) is ChangeStatus.APPROVED
    store.note("orders", 1, "a", SinkOutcome(("ALTER TABLE t",), ChangeStatus.APPLIED))
    store.note("orders", 1, "b", SinkOutcome(status=ChangeStatus.FAILED, error="no room"))
    assert _status(opener) is ChangeStatus.FAILED
    store.note("orders", 1, "b", SinkOutcome(status=ChangeStatus.IGNORED))
    assert _status(opener) is ChangeStatus.APPLIED
    kept = store.change("orders", 1)
    assert kept is not None
    assert kept.outcomes["a"].statements == ("ALTER TABLE t",)


def test_another_state_directory_begins_without_changes_and_structures(opener: Opener) -> None:
    store = opener()
    store.claim("orders", "here")
    store.schema_changes.record("orders", change(7))
    store.schema_changes.keep_structures("orders", "orders:a", {"public.orders": {"source": "x"}})
    store.schema_changes.keep_structures("orders", "orders:a", {"public.orders": {"source": "y"}})
    assert opener().schema_changes.structures("orders", "orders:a") == {"public.orders": {"source": "y"}}
    assert opener().schema_changes.structures("orders", "orders") == {}
    store.claim("orders", "there")
    assert store.schema_changes.changes("orders") == []
    assert store.schema_changes.structures("orders", "orders:a") == {}


def _status(opener: Opener) -> ChangeStatus:
    found = opener().schema_changes.change("orders", 1)
    assert found is not None
    return found.status


def test_a_quarantine_begins_once_goes_forward_only_and_ends_once(opener: Opener) -> None:
    store = opener().schema_changes
    for pipeline in ("orders", "others"):
        number = store.record(pipeline, change(7)).number
        first = store.quarantine(pipeline, number, "public.orders", 7, "2026-01-31")
    assert first == Quarantine(1, "public.orders", 7, 7, since="2026-01-31")
    assert opener().schema_changes.quarantine("orders", 1, "public.orders", 9, "2026-02-01") == first
    assert _status(opener) is ChangeStatus.QUARANTINED
    assert store.record("orders", change(7)).quarantine == first
    store.decide("orders", 1, Decision.REJECTED, "ann", "", "")
    assert _status(opener) is ChangeStatus.REJECTED
    for through, ended in ((12, None), (10, None), (20, 25), (30, 35)):
        store.note_requeued("orders", 1, through, ended)
    (found,) = opener().schema_changes.quarantines("orders")
    assert (found.through, found.ended, found.decided, found.lost_at) == (20, 25, True, "")
    store.forget_quarantine("orders", 1)
    assert (store.quarantines("orders"), store.quarantines("others")) == ([], [first])
