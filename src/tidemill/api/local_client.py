"""The calls of a `ServerClient` without a server's address, on a state store: the same verbs and the same answers.

For `tidemill pipelines` and for programs of who may write the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from types import TracebackType
from typing import Any

from tidemill.api.client import RemotePipeline, ServerEvent, pipeline_of
from tidemill.api.shapes import PipelineShape, StatusShape
from tidemill.config.posted import read_several
from tidemill.errors import ConfigError
from tidemill.service.cause import Cause, current_actor
from tidemill.service.server.local import LocalInstallation, LocalPlace, changed_views, open_local
from tidemill.service.server.managed import PipelineView

_DRAIN_SECONDS = 30.0
_LOOK_SECONDS = 0.5


class LocalClient:
    """Use it in a `with`. `url` is the store, as messages name it."""

    whose = ""

    def __init__(self, place: LocalPlace, *, create: bool = False) -> None:
        self.url, self._place, self._create = place.state.partition("?")[0].rpartition("@")[2], place, create
        self._open = ExitStack()
        self._installation: LocalInstallation | None = None

    def __enter__(self) -> LocalClient:
        self._installation = self._open.enter_context(open_local(self._place, create=self._create))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    def pipelines(self, *, state: str | None = None, labels: Sequence[str] = ()) -> Iterator[RemotePipeline]:
        wanted = dict(_label(each) for each in labels)
        for view in self._local.views():
            if state in (None, view.state) and wanted.items() <= dict(view.labels).items():
                yield _to_remote(view)

    def pipeline(self, name: str) -> RemotePipeline:
        return _to_remote(self._local.view(name))

    def apply(self, text: str) -> list[RemotePipeline]:
        return [_to_remote(self._local.apply(each, Cause(current_actor()))) for each in read_several(text)]

    def delete(self, name: str) -> None:
        self._local.delete(name, Cause(current_actor()))

    def change(self, name: str, action: str, *, reason: str = "") -> RemotePipeline:
        given = {"seconds": _DRAIN_SECONDS} if action == "drain" else {}
        return _to_remote(self._local.change(name, action, Cause(current_actor(), reason), given))

    def status(self, name: str) -> dict[str, Any]:
        return StatusShape.of(self._local.view(name)).model_dump()

    def events(self, name: str | None = None) -> Iterator[ServerEvent]:
        """Each new status, and what a pipeline failed with; batches are known to its process alone."""
        seen: dict[str, PipelineView] = {}
        while True:
            now = [self._local.view(name)] if name else self._local.views()
            for view in changed_views(seen, now):
                before, seen[view.name] = seen.get(view.name), view
                status = asdict(view.status) if view.status is not None else {}
                yield ServerEvent("status", {**status, "state": view.state})
                if view.error and view.state == "failed" and (before is None or before.error != view.error):
                    yield ServerEvent("error", {"pipeline": view.name, **view.error})
            for gone in seen.keys() - {view.name for view in now}:
                del seen[gone]
            time.sleep(_LOOK_SECONDS)

    def recover(self, name: str, mode: str, *, reason: str = "") -> dict[str, Any]:
        raise ConfigError(
            "that needs a server, or the pipeline's file", where="tidemill pipelines recover",
            fix="Name a server with --server; or use `tidemill recover FILE`.",
        )  # fmt: skip

    def runs(self, name: str, limit: int = 20) -> list[dict[str, Any]]:
        raise ConfigError(
            "runs of a schedule are known to a server", where="tidemill pipelines runs",
            fix="Name one with --server.",
        )  # fmt: skip

    def run_now(self, name: str, *, reason: str = "", key: str | None = None) -> dict[str, Any]:
        return self.runs(name)[0]

    @property
    def _local(self) -> LocalInstallation:
        assert self._installation is not None, "it is not open"
        return self._installation


def _to_remote(view: PipelineView) -> RemotePipeline:
    return pipeline_of(PipelineShape.of(view).model_dump())


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f'"{text}" is not a label', where="label", fix="Write it as name=value.")
    return name, value
