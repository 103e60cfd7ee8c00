"""What the http sink makes of answers and of its settings: it waits, repeats, refuses or stops."""

from __future__ import annotations

import datetime
import email.utils
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.sinks.http.support import delivery_of, events, first_times
from tests.support.blocks import make_block
from tidemill.config.secrets import mask, reveal
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Poisoned, Refused, is_retryable
from tidemill.formats.json import JsonFormat
from tidemill.lab.servers import tls
from tidemill.lab.servers.http_receiver import Received, Receiver, ScriptedResponse
from tidemill.lab.servers.process import free_port
from tidemill.model.block import Op
from tidemill.sinks._shared import in_order
from tidemill.sinks.http import HttpConfig
from tidemill.sinks.http.client import retry_after


class TestAnswers:
    @pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
    def test_that_may_change_are_waited_for(self, sinks: Any, receiver: Receiver, status: int) -> None:
        receiver.script = first_times(status, 2)
        assert sinks().write(delivery_of(make_block(3))).events == 3
        assert len(receiver.all) == 9

    def test_that_ask_for_patience_get_it(self, sinks: Any, receiver: Receiver) -> None:
        receiver.script = first_times(429, 1, **{"Retry-After": "1"})
        sinks().write(delivery_of(make_block(1)))
        first, second = receiver.all
        assert second.at - first.at >= 1

    def test_that_ask_for_more_patience_than_there_is_fail_the_batch(self, sinks: Any, receiver: Receiver) -> None:
        receiver.script = first_times(503, 99, **{"Retry-After": "3600"})
        with pytest.raises(DeliveryError, match="HTTP 503") as raised:
            sinks().write(delivery_of(make_block(1)))
        assert is_retryable(raised.value)
        assert len(receiver.all) == 1

    def test_that_never_change_fail_the_batch_at_the_deadline(self, sinks: Any, receiver: Receiver) -> None:
        receiver.script = lambda request: ScriptedResponse(500)
        with pytest.raises(DeliveryError, match="HTTP 500") as raised:
            sinks(deadline_seconds=0.05).write(delivery_of(make_block(50)))
        assert is_retryable(raised.value)

    def test_that_are_lost_lead_to_a_repetition_that_can_be_told(self, sinks: Any, receiver: Receiver) -> None:
        dropped: set[str] = set()

        def script(request: Received) -> ScriptedResponse:
            identity = request.headers["idempotency-key"]
            drop = identity not in dropped
            dropped.add(identity)
            return ScriptedResponse(drop=drop)

        receiver.script = script
        assert sinks().write(delivery_of(make_block(5))).events == 5
        assert set(Counter(r.headers["idempotency-key"] for r in receiver.taken).values()) == {2}

    def test_of_4xx_name_all_events_that_are_at_fault_and_send_the_others(self, sinks: Any, receiver: Receiver) -> None:
        bad = {3, 4, 17}

        def script(request: Received) -> ScriptedResponse:
            offsets = {e["offset"] for e in events([request])}
            return ScriptedResponse(422 if offsets & bad else 200)

        receiver.script = script
        for mode in ("event", "batch"):
            with pytest.raises(Poisoned) as raised:
                sinks(f"/{mode}", mode=mode, max_events=8).write(delivery_of(make_block(20)))
            assert raised.value.reasons == dict.fromkeys(sorted(bad), "the receiver answered HTTP 422")
            taken = sorted(e["offset"] for e in events([r for r in receiver.taken if r.path == f"/{mode}"]))
            assert taken == [o for o in range(20) if o not in bad]
            rest = delivery_of(make_block(20)).without(bad)
            assert sinks(f"/{mode}", mode=mode, max_events=8).write(rest).events == 17

    @pytest.mark.parametrize("status", [401, 403, 407])
    def test_that_refuse_the_login_stop_and_poison_nothing(self, sinks: Any, receiver: Receiver, status: int) -> None:
        receiver.script = lambda request: ScriptedResponse(status)
        with pytest.raises(Refused, match=f"HTTP {status}") as raised:
            sinks(secret_headers={"Authorization": "Bearer hush"}).write(delivery_of(make_block(5)))
        assert not isinstance(raised.value, Poisoned)
        assert "hush" not in str(raised.value)
        assert receiver.all[0].headers["authorization"] == "Bearer hush"

    def test_that_refuse_are_told_though_another_courier_was_only_stopped(
        self, sinks: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The one that waits to try again has an older group than the one that meets the refusal."""
        monkeypatch.setattr(in_order, "WINDOW", 10)
        blocks = [make_block(10, ops=Op.UPDATE, offsets=range(at, at + 10)) for at in range(0, 60, 10)]
        first = events([Received("", "", {}, JsonFormat().batch(blocks[0], "orders").to_pybytes(), 0)])[0]["after"][
            "id"
        ]

        def script(request: Received) -> ScriptedResponse:
            event = events([request])[0]
            if event["after"]["id"] == first:
                return ScriptedResponse(503, {"Retry-After": "30"})
            return ScriptedResponse(403 if event["offset"] >= 10 else 200)

        receiver.script = script
        with pytest.raises(Refused, match="HTTP 403"):
            sinks(concurrency=10).write(delivery_of(*blocks))

    def test_that_redirect_are_not_followed_unless_allowed_and_secrets_stay_at_home(
        self, sinks: Any, receiver: Receiver
    ) -> None:
        with Receiver() as other:
            receiver.script = lambda request: ScriptedResponse(307, {"Location": f"{other.url}/there"})
            with pytest.raises(Refused, match="HTTP 307, a redirect"):
                sinks().write(delivery_of(make_block(1)))
            sinks(follow_redirects=True, secret_headers={"Authorization": "x"}).write(delivery_of(make_block(1)))
            assert [r.path for r in other.taken] == ["/there"]
            assert "authorization" not in other.taken[0].headers
            receiver.script = lambda request: ScriptedResponse(307, {"Location": "/round"})
            with pytest.raises(Refused, match="redirects"):
                sinks(follow_redirects=True).write(delivery_of(make_block(1)))

    def test_that_never_come_are_worth_a_retry(self, sinks: Any) -> None:
        sink = sinks(url=f"http://127.0.0.1:{free_port()}/", deadline_seconds=0.05)
        with pytest.raises(DeliveryError) as raised:
            sink.write(delivery_of(make_block(3)))
        assert is_retryable(raised.value)


def test_a_sink_can_be_used_again_after_an_error(sinks: Any, receiver: Receiver) -> None:
    receiver.script = lambda request: ScriptedResponse(500)
    sink = sinks(deadline_seconds=0)
    with pytest.raises(DeliveryError):
        sink.write(delivery_of(make_block(20)))
    receiver.script = lambda request: ScriptedResponse()
    assert sink.write(delivery_of(make_block(20))).events == 20
    sink.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("http_")]


def test_a_certificate_nobody_vouches_for_is_refused(sinks: Any, tmp_path: Path) -> None:
    made = tls.make(tmp_path / "tls")
    with Receiver(certificates=made) as secure:
        with pytest.raises(Refused, match="certificate is not trusted"):
            sinks(url=f"{secure.url}/").write(delivery_of(make_block(1)))
        trusting = sinks(url=f"{secure.url}/", tls={"ca_file": made.ca})
        assert trusting.write(delivery_of(make_block(3))).events == 3
        assert [c.outcome for c in trusting.doctor()] == [Outcome.PASS]
        assert [c.outcome for c in sinks(url=f"{secure.url}/").doctor()] == [Outcome.FAIL]
        assert sinks(url=f"{secure.url}/", tls={"verify": False}).write(delivery_of(make_block(1))).events == 1


def test_doctor_looks_and_sends_nothing(sinks: Any, receiver: Receiver) -> None:
    assert [c.outcome for c in sinks().doctor()] == [Outcome.PASS]
    assert [c.outcome for c in sinks(signing_secret="x").doctor()] == [Outcome.PASS, Outcome.WARN]
    assert receiver.all == []


def test_secrets_are_masked_and_yet_reach_the_worker() -> None:
    config = HttpConfig.model_validate(
        {
            "id": "h", "url": "https://u:HIDE@h/", "signing_secret": "HIDE",
            "secret_headers": {"Authorization": "HIDE"},
            "tls": {"certificate_file": "c", "key_file": "k", "key_password": "HIDE"},
        }
    )  # fmt: skip
    assert "HIDE" not in str(mask(config))
    assert "HIDE" not in config.where
    assert HttpConfig.model_validate(reveal(config)) == config


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://h/"}, {"url": "https://${source.table}.example/"}, {"url": "https://h/${nope}"}, {"url": "h"},
        {"url": "http://h", "headers": {"x": "${nope}"}}, {"url": "http://h", "batch_shape": "array", "format": "avro"},
        {"url": "http://h", "mode": "batch", "envelope": "cloudevents", "cloudevents_mode": "binary"},
        {"url": "http://h", "headers": {"x y": "z"}}, {"url": "http://h", "headers": {"Content-Length": "1"}},
        {"url": "http://h", "secret_headers": {"x": "a\nb: c"}}, {"url": "http://h", "secret_headers": {"x": "\u20ac"}},
        {"url": "http://h", "idempotency_header": "a: b"}, {"url": "http://h", "signature_header": "a\r\nb"},
    ],
)  # fmt: skip
def test_a_config_that_cannot_work_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HttpConfig(id="h", **options)


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after("7") == 7
    assert retry_after(None) is None
    assert retry_after("soon") is None
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    assert 90 < (retry_after(email.utils.format_datetime(later, usegmt=True)) or 0) <= 100
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
