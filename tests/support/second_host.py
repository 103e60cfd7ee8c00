"""A second host for a test, which is skipped where none can be made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.virtual_host import VirtualHost


@contextmanager
def second_host() -> Iterator[VirtualHost]:
    with ExitStack() as stack:
        try:
            host = stack.enter_context(VirtualHost())
        except EnvironmentProblem as error:
            pytest.skip(str(error))
        yield host
