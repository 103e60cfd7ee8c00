"""A bucket of S3, or of what speaks its protocol: its settings, its client, and what its errors mean for a retry."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator, model_validator

from tidemill.errors import DeliveryError, Refused
from tidemill.model.config import Config
from tidemill.net.tls import TrustConfig

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


class S3Connection(Config):
    """Where the bucket is, and who asks."""

    bucket: str = Field(min_length=3, description="The bucket; it must exist.")
    prefix: str = Field(default="", description="Where in the bucket; belongs to this component alone.")
    region: str = Field(default="us-east-1", description="The bucket's region.")
    endpoint: str | None = Field(
        default=None, pattern=r"^https?://", description="Address of a store other than AWS: https://minio:9000."
    )
    path_style: bool | None = Field(
        default=None, description="Whether the bucket stands in the path, not in the host; by default with an endpoint."
    )
    access_key_id: str | None = Field(default=None, description="Key id; from the environment if left out.")
    secret_access_key: SecretStr | None = Field(default=None, description="The key's secret.")
    session_token: SecretStr | None = Field(default=None, description="Token of temporary credentials.")
    tls: TrustConfig = Field(default=TrustConfig(), description="Certificates, for https.")
    connect_timeout_seconds: float = Field(default=10.0, gt=0, description="How long connecting may take.")
    timeout_seconds: float = Field(default=60.0, gt=0, description="How long one request may take.")

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_name(cls, text: str) -> str:
        return split_folders(text)

    @model_validator(mode="after")
    def _key_has_its_secret(self) -> S3Connection:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together. Give both or none.")
        return self

    @property
    def root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""

    def store(self) -> Any:
        from obstore.store import S3Store

        plain = (self.endpoint or "").startswith("http://")
        path_style = self.path_style if self.path_style is not None else self.endpoint is not None
        options: dict[str, Any] = {"region": self.region, "virtual_hosted_style_request": not path_style}
        if self.endpoint is not None:
            options["endpoint"] = self.endpoint
        if self.access_key_id is not None and self.secret_access_key is not None:
            options["access_key_id"] = self.access_key_id
            options["secret_access_key"] = self.secret_access_key.get_secret_value()
        if self.session_token is not None:
            options["token"] = self.session_token.get_secret_value()
        client: dict[str, Any] = {
            "allow_http": plain,
            "timeout": f"{self.timeout_seconds}s",
            "connect_timeout": f"{self.connect_timeout_seconds}s",
            "allow_invalid_certificates": not self.tls.verify,
        }
        if self.tls.ca_file is not None:
            client["root_certificate"] = _certificates(self.tls.ca_file)
        # The stream tries again by its own policy; a few quick tries here save it from a passing 503.
        retries = {"max_retries": 3}
        return S3Store(self.bucket, client_options=client, retry_config=retries, **options)


def split_folders(text: str) -> str:
    """A prefix or a path as its folders with one slash between them."""
    parts = [part for part in text.split("/") if part]
    if wrong := next((part for part in parts if part in (".", "..") or re.search(r"[\x00-\x1f\x7f]", part)), None):
        raise ValueError(f"{wrong!r} cannot be a folder's name")
    return "/".join(parts)


@contextlib.contextmanager
def explain_errors(where: str) -> Iterator[None]:
    """From obstore's errors to ours. Their texts hold the request and the answer, never an object's content."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.BaseError, OSError) as error:
        raise _explain(error, where) from error


def _explain(error: Exception, where: str) -> DeliveryError:
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


def _certificates(file: Path) -> str:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or type(error).__name__
        raise Refused(f"the file of certificates cannot be read: {what}", fix="Check tls.ca_file.") from error
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise Refused("the file of certificates has none", fix="tls.ca_file must be PEM.")
    return text
