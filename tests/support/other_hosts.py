"""Other hosts for a test, which is skipped where none can be made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.virtual_host import VirtualHost


@contextmanager
def other_hosts(count: int) -> Iterator[list[VirtualHost]]:
    with ExitStack() as stack:
        try:
            hosts = [stack.enter_context(VirtualHost(number)) for number in range(count)]
        except EnvironmentProblem as error:
            pytest.skip(str(error))
        yield hosts
