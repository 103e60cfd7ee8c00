"""What `tidemill doctor` asks of a store: is the bucket there, may it be written, and does it keep the condition that
manifests rely on. What it writes to find out it removes again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.contracts import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.net.s3 import explain_errors

if TYPE_CHECKING:
    from tidemill.sinks.s3 import S3Config


def run_checks(config: S3Config) -> Iterator[Check]:
    try:
        import obstore
    except ImportError:
        yield Check("client", Outcome.FAIL, "obstore is not installed", "pip install 'tidemill[s3]'")
        return
    try:
        with explain_errors(config.where):
            store = config.store()
            next(iter(obstore.list(store, f"{config.root}_tidemill/", chunk_size=1)), None)
    except DeliveryError as error:
        yield Check("bucket", Outcome.FAIL, error.what, error.fix)
        return
    yield Check("bucket", Outcome.PASS, f"s3://{config.bucket}/{config.prefix} can be listed")
    name = f"{config.root}_tidemill/doctor-{uuid.uuid4().hex}"
    try:
        with explain_errors(config.where):
            kept = _keeps_condition(store, name)
    except DeliveryError as error:
        yield Check("writes", Outcome.FAIL, error.what, f"{error.fix} If {name} is there, remove it.")
        return
    if kept:
        yield Check("writes", Outcome.PASS, "only where nothing is (If-None-Match)")
    else:
        fix = "Use a store that has conditional writes; without them two workers may both publish a batch."
        yield Check("writes", Outcome.FAIL, "the store ignores If-None-Match", fix)


def _keeps_condition(store: Any, name: str) -> bool:
    import obstore
    from obstore.exceptions import AlreadyExistsError

    try:
        for _ in range(2):
            obstore.put(store, name, b"tidemill doctor", mode="create", use_multipart=False)
    except AlreadyExistsError:
        return True
    finally:
        obstore.delete(store, name)
    return False
