"""The TLS settings that network sinks share."""

from __future__ import annotations

import ssl
from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from tidemill.errors import Refused
from tidemill.model.config import Config


def distrust_error(error: BaseException | None) -> bool:
    """Whether TLS failed because of a certificate, the server's or ours. Drivers wrap what `ssl` says."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and "CERTIFICATE" in str(error).upper():
            return True
        error = error.__cause__ or error.__context__
    return False


class TrustConfig(Config):
    """For clients that show no certificate of their own. The file is read in the worker that connects."""

    ca_file: Path | None = Field(default=None, description="Certificates to trust, PEM; the system's if left out.")
    verify: bool = Field(
        default=True, description="Whether the server must prove its name; false only where the network is trusted."
    )


class TlsConfig(TrustConfig):
    """Files are read in the worker that connects, so every worker needs them."""

    certificate_file: Path | None = Field(default=None, description="The client's own certificate, PEM.")
    key_file: Path | None = Field(default=None, description="The key of the client's certificate, PEM.")
    key_password: SecretStr | None = Field(default=None, description="Password of the key file.")

    @model_validator(mode="after")
    def _pair(self) -> TlsConfig:
        if self.key_file and not self.certificate_file:
            raise ValueError("key_file needs certificate_file")
        return self

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
            if self.certificate_file:
                password = self.key_password.get_secret_value() if self.key_password else None
                context.load_cert_chain(self.certificate_file, self.key_file, password)
        except OSError as error:  # ssl.SSLError is one
            raise Refused(
                f"the TLS files cannot be used: {error.strerror or type(error).__name__}",
                fix="Check tls.ca_file, tls.certificate_file, tls.key_file and tls.key_password.",
            ) from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
