"""What a server keeps, on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.contracts.installation import AuditEntry, KeyClaim, StoredAnswer, StoredDocument, StoredToken
from tidemill.state import audit, open_installation
from tidemill.state.installation import InstallationStore

ORDERS = StoredDocument("orders", "api", '{"metadata": {}}', "v1", "running", "ann", "2026-01-01T00:00:00Z")
TOKEN = StoredToken("a1", "ann", "admin", "5e88", "2026-01-01T00:00:00Z")


@pytest.fixture
def store(uri: str) -> Iterator[InstallationStore]:
    opened = open_installation(uri)
    yield opened
    opened.close()


def test_a_document_is_kept_changed_and_removed_and_nobody_undoes_what_another_did(
    store: InstallationStore, uri: str
) -> None:
    assert store.documents() == []
    assert not store.change_document(ORDERS)
    assert not store.set_desired("orders", "paused")
    assert store.add_document(ORDERS)
    assert not store.add_document(replace(ORDERS, version="v9"))
    assert store.add_document(replace(ORDERS, pipeline="baskets", origin="file", document=""))
    assert store.set_desired("orders", "paused")
    assert not store.change_document(replace(ORDERS, version="v9"), instead_of="v0")
    assert store.change_document(replace(ORDERS, version="v2"), instead_of="v1")
    changed = replace(ORDERS, version="v2", desired="paused")
    other = open_installation(uri)
    assert [each.pipeline for each in other.documents()] == ["baskets", "orders"]
    assert other.documents()[1] == changed
    other.remove_document("baskets")
    other.close()
    assert store.documents() == [changed]


def test_a_token_is_found_and_revoked_once(store: InstallationStore) -> None:
    assert store.token("a1") is None
    assert store.add_first_token(TOKEN, entry("first"))
    assert not store.add_first_token(replace(TOKEN, id="a2"), entry("none"))
    store.add_token(replace(TOKEN, id="a3", created_at="2026-01-02T00:00:00Z"), entry("second"))
    assert store.token("a1") == TOKEN
    assert store.revoke_token("a1", "2026-02-01", entry("revoked"))
    assert store.revoke_token("a1", "2026-03-01", entry("again"))
    assert not store.revoke_token("a2", "2026-03-01", entry("none"))
    assert [(each.id, each.revoked_at) for each in store.tokens()] == [("a1", "2026-02-01"), ("a3", "")]
    assert not store.add_first_token(replace(TOKEN, id="a4"), entry("none")), "a revoked token was there first"
    assert [each.detail for each in store.audit_trail()] == ["revoked", "second", "first"]


def entry(detail: str) -> AuditEntry:
    return AuditEntry("2026-01-01T00:00:00Z", "ann", "change token", "", detail)


def test_the_first_answer_to_a_key_stays_until_it_is_old(store: InstallationStore) -> None:
    answer = StoredAnswer("digest", 201, "{}", '{"name": "orders"}', "2026-01-02")
    store.keep_answer("a1", "key", answer, forget_before="2026-01-01")
    store.keep_answer("a1", "key", replace(answer, status=409), forget_before="2026-01-01")
    claim = KeyClaim("one", "2026-01-02")
    assert store.claim_key("a1", "key", claim) == answer
    assert store.claim_key("a2", "key", claim) is None
    store.keep_answer("a2", "key", replace(answer, at="2026-01-03"), forget_before="2026-01-03")
    assert store.claim_key("a2", "key", claim) == replace(answer, at="2026-01-03")
    assert store.claim_key("a1", "key", claim) is None


def test_one_server_has_a_key_until_it_answers_or_is_gone(store: InstallationStore) -> None:
    one, other = (KeyClaim(name, "2026-01-02") for name in ("one", "other"))
    assert store.claim_key("a1", "key", one) is None
    assert store.claim_key("a1", "key", other) == one
    store.release_key("a1", "key", "other")
    assert store.claim_key("a1", "key", other) == one, "it is not the other one's to release"
    assert store.claim_key("a1", "key", other, instead_of="one") is None
    assert store.claim_key("a1", "key", one, instead_of="one") == other
    store.release_key("a1", "key", "other")
    assert store.claim_key("a1", "key", one) is None
    answer = StoredAnswer("digest", 201, "{}", "one", "2026-01-02")
    store.keep_answer("a1", "key", answer, forget_before="2026-01-01")
    store.release_key("a1", "key", "one")
    assert store.claim_key("a1", "key", other, instead_of="one") == answer, "an answer stays, whatever it says"


def test_a_server_of_an_earlier_version_takes_no_claim_for_an_answer(store: InstallationStore) -> None:
    assert store.claim_key("a1", "key", KeyClaim("one", "2026-01-02")) is None
    with store._database.reading() as run:
        assert run("SELECT * FROM answers WHERE caller = 'a1' AND idempotency_key = 'key'") == []


def test_the_audit_trail_is_newest_first_and_bounded(store: InstallationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KEPT_AUDIT", 3)
    monkeypatch.setattr(audit, "PRUNED_EVERY", 1)
    entries = [AuditEntry(f"2026-01-0{n}", "ann", "create", "orders", "", n) for n in range(1, 6)]
    for entry in entries:
        store.audit(entry)
    assert store.audit_trail() == entries[:1:-1]
    assert store.audit_trail(limit=1) == entries[-1:]
    assert store.audit_trail(limit=2, before=5) == entries[3:1:-1]
    assert store.last_audit("orders", ("pause", "create")) == entries[-1]
    assert store.last_audit("orders", ("pause",)) is store.last_audit("users", ("create",)) is None


def test_who_does_the_same_thing_over_and_over_erases_no_trace_of_others(
    store: InstallationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "KEPT_AUDIT", 3)
    monkeypatch.setattr(audit, "KEPT_IN_ALL", 8)
    monkeypatch.setattr(audit, "PRUNED_EVERY", 2)
    store.audit(AuditEntry("2026-01-01", "ann", "delete", "orders", ""))
    for _ in range(5):
        store.audit(AuditEntry("2026-01-02", "eve", "pause", "beds", ""))
    assert [each.actor for each in store.audit_trail()] == ["eve", "eve", "eve", "ann"]
    for n in range(10):
        store.audit(AuditEntry("2026-01-03", f"process {n}", "reload", "", ""))
    assert [each.number for each in store.audit_trail()] == list(range(16, 8, -1)), "there is an end to it"


def test_only_the_owner_can_read_the_file(store: InstallationStore, uri: str) -> None:
    store.add_token(TOKEN, entry("made"))
    if "://" not in uri:
        assert Path(uri).stat().st_mode & 0o077 == 0
