"""Asks another process of the state store to do something of a pipeline, and waits for its answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from tidemill.contracts.installation import StoredRequest
from tidemill.errors import LifecycleError
from tidemill.model.clock import utc_now
from tidemill.service.cause import Cause
from tidemill.state.shared_requests import SharedRequests

POLL_SECONDS = 0.1
_KEPT = timedelta(hours=1)


def ask(
    store: SharedRequests, name: str, action: str, given: Mapping[str, Any], cause: Cause, *, patient: float,
    seconds: float,
) -> dict[str, Any] | None:  # fmt: skip
    """None if nobody took the request in `patient` seconds: it is taken back then, and nobody does it later. Who took
    it has `seconds` more."""
    request = StoredRequest(
        uuid.uuid4().hex, name, action, orjson.dumps(given).decode(), cause.actor, cause.reason, utc_now()
    )
    store.add_request(request, forget_before=(datetime.now(UTC) - _KEPT).isoformat(timespec="milliseconds"))
    began = time.monotonic()
    while (waited := time.monotonic() - began) < patient + seconds:
        found = store.request(request.id)
        if found is not None and found.answer:
            store.remove_request(request)
            answer: dict[str, Any] = orjson.loads(found.answer)
            return answer
        if found is not None and not found.taken_by and waited > patient and store.take_request(found, "who asked"):
            store.remove_request(request)
            return None
        time.sleep(POLL_SECONDS)
    raise LifecycleError(
        f'the process that runs pipeline "{name}" did not answer in time',
        fix="It may still do what was asked: its state and the audit trail say so.",
    )
