"""From obstore's errors to ours. Their texts hold the request and the answer, never an object's content."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from tidemill.errors import DeliveryError, Refused

_LOGIN = "Check access_key_id and secret_access_key (or the environment's credentials), region and endpoint."
_REFUSED = {
    "SignatureDoesNotMatch": _LOGIN,
    "InvalidAccessKeyId": _LOGIN,
    "ExpiredToken": "The session token is over. Give a new one, or let the environment's credentials renew themselves.",
    "AccessDenied": "Grant s3:PutObject, s3:GetObject, s3:ListBucket and s3:DeleteObject on the bucket and its prefix.",
    "NoSuchBucket": "Create the bucket, or check its name.",
    "InvalidBucketName": "Check the bucket's name.",
    "PermanentRedirect": "The bucket is in another region. Set region.",
    "AuthorizationHeaderMalformed": "The bucket is in another region. Set region.",
}
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    from obstore import exceptions

    try:
        yield
    except (exceptions.BaseError, OSError) as error:
        raise _explain(error, where, exceptions) from error


def _explain(error: Exception, where: str, exceptions: object) -> DeliveryError:
    text = str(error)
    code = (_CODE.search(text) or [None, ""])[1] or ""
    status = (_STATUS.search(text) or [None, ""])[1] or ""
    said = code or (f"HTTP {status}" if status else type(error).__name__)
    if code in _REFUSED:
        return Refused(f"S3 refused: {said}", where=where, fix=_REFUSED[code])
    if status in ("401", "403"):
        return Refused(f"S3 refused: {said}", where=where, fix=_LOGIN)
    if "InvalidCertificate" in text:  # rustls, inside of what the HTTP client says
        return Refused(
            "the store's certificate is not trusted", where=where,
            fix="Check tls.ca_file and the name in endpoint; tls.verify: false trusts any certificate.",
        )  # fmt: skip
    if type(error).__name__ in ("UnknownConfigurationKeyError", "InvalidPathError", "NotSupportedError"):
        return Refused(f"S3 cannot do this: {type(error).__name__}", where=where, fix="Check bucket, prefix and path.")
    return DeliveryError(
        f"S3 did not take the objects: {said}", where=where, fix="Is the endpoint reachable? The batch is tried again."
    )
