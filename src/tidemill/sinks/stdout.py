"""Prints events as JSON lines on the standard output of the process that runs the pipeline.

A sink lives in a Spark worker, whose own output ends in Spark's logs. So the driver says where its output is before
Spark starts (`announce`), the workers inherit that, and on the same machine they write there. On other machines
the lines go to the worker's own output, unless `path` names a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Outcome, SinkConfig
from tidemill.disk.output import lock_output
from tidemill.errors import DeliveryError
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.sinks._shared.encoded import EncodedSinkConfig, encoder, no_headers
from tidemill.sinks._shared.lines import Encoding

_ANNOUNCED = "TIDEMILL_STDOUT"
_OWN = "/dev/fd/1"


def announce() -> None:
    """Called by the driver before it starts Spark: child processes find its standard output by this name.

    Redirected to a file, both sides must append, or the driver's own prints would overwrite the workers' lines.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_APPEND)
        os.environ[_ANNOUNCED] = os.ttyname(1) if os.isatty(1) else f"/proc/{os.getpid()}/fd/1"


class StdoutConfig(EncodedSinkConfig):
    format: Literal["json"] = Field(default="json", description="Wire format of an event: lines are text.")
    path: str | None = Field(
        default=None,
        min_length=1,
        description="A file or named pipe to append to instead; a worker on another machine writes to its own.",
    )

    @model_validator(mode="after")
    def _has_no_headers(self) -> StdoutConfig:
        return no_headers(self)


class StdoutSink(BaseSink[StdoutConfig]):
    """Lines of several lanes may alternate, but never mix within a piece. A replay prints again."""

    Config: ClassVar[type[SinkConfig]] = StdoutConfig
    mechanism: ClassVar[str] = "Lines are printed; a replay prints them again."
    capabilities = Capabilities(formats=frozenset({"json"}))
    config: StdoutConfig
    tier: ClassVar[Tier] = Tier.AT_LEAST_ONCE

    def __init__(self, config: StdoutConfig) -> None:
        super().__init__(config)
        self._format = encoder(config)
        self._fd: int | None = None

    def write(self, delivery: Delivery) -> Receipt:
        encoding = Encoding(delivery, self._format)
        try:
            for block in delivery:
                for text in encoding.pieces(block):
                    with self._open() as fd:
                        left = memoryview(text)
                        while left:
                            left = left[os.write(fd, left) :]
        except OSError as error:
            self.close()
            raise DeliveryError(
                f"cannot print: {error.strerror or error}", where=f'sink "{self.config.id}", {self._target()}',
                fix="Set path to a file that can be written.",
            ) from error  # fmt: skip
        return encoding.receipt(self.config.id)

    def doctor(self) -> Iterable[Check]:
        path = self.config.path
        if path is None:
            yield Check("output", Outcome.PASS, "the standard output of the process that runs the pipeline")
            return
        folder = os.path.dirname(os.path.abspath(path))
        if os.access(path if os.path.exists(path) else folder, os.W_OK):
            yield Check("output", Outcome.PASS, path)
        else:
            yield Check("output", Outcome.FAIL, f"{path} cannot be written", f"Create {folder}, or grant write access.")

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """The target, locked against other lanes: a pipe takes only 4 KiB in one piece."""
        if self._fd is None:
            self._fd = _open(self._target())
        with lock_output(self._fd):
            yield self._fd

    def _target(self) -> str:
        if self.config.path is not None:
            return self.config.path
        announced = os.environ.get(_ANNOUNCED, "")
        return announced if os.access(announced, os.W_OK) else _OWN


def _open(path: str) -> int:
    # Appending matters when the output was redirected to a file: this is a second opening of it, which would
    # otherwise write over its beginning.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    return os.open(path, flags if path.startswith(("/proc/", "/dev/")) else flags | os.O_CREAT, 0o644)


component = StdoutSink
