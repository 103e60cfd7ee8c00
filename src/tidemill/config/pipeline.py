"""A pipeline ready to run: its checked spec, where its state lives, and its components when asked for."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tidemill import registry
from tidemill.config.document import read
from tidemill.config.occupied import Loaded, clashes
from tidemill.config.problem import DocumentError, Problem
from tidemill.config.resolve import resolve
from tidemill.config.secrets import masked
from tidemill.config.spec import PipelineSpec, SinkSpec
from tidemill.contracts import CheckpointStore, Component, Sink, StateStore
from tidemill.errors import ConfigError
from tidemill.state import open_store


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`state_path` is absolute: capture, driver and workers may have different working directories."""

    name: str
    tenant: str | None
    file: str
    spec: PipelineSpec
    state_path: Path

    @property
    def log_uri(self) -> str:
        uri = self.spec.log.uri
        if uri is None:
            return str(self.state_path / "log")
        return uri if "://" in uri else str(Path(uri).absolute())

    @property
    def owns_log(self) -> bool:
        """Whether the log is in the state directory; one that the document puts elsewhere may have neighbours."""
        return self.spec.log.uri is None

    @property
    def source_id(self) -> str:
        """Part of every event's identity (invariant 4)."""
        return self.spec.source.config.id

    @property
    def spark_path(self) -> Path:
        """Spark's own checkpoint directory: it pins batch boundaries, ours is the truth."""
        return self.state_path / "spark"

    def spark_path_of(self, sink: str) -> Path:
        """The same of a sink that has its own position; its name must not choose another directory."""
        return self.state_path / f"spark-{urllib.parse.quote(sink, safe='')}"

    @property
    def dlq_path(self) -> Path:
        """Dead letters, if the document asks for them."""
        return self.state_path / "dlq.sqlite"

    @property
    def state_uri(self) -> str:
        """The state store: one for all pipelines of an installation."""
        return self.spec.state_uri or str(self.state_path.parent / "state.sqlite")

    def build_state(self) -> StateStore:
        """Not connected yet."""
        return open_store(self.state_uri)

    def build_source(self) -> Any:
        """Not connected yet."""
        return component("sources", self.spec.source.type)(self.spec.source.config)

    def build_sinks(self) -> list[Sink]:
        """In the order of the document, not connected yet."""
        return [self.build_sink(sink) for sink in self.spec.sinks]

    def build_sink(self, sink: SinkSpec) -> Sink:
        return cast(Sink, component("sinks", sink.type)(sink.config))

    def build_checkpoints(self) -> CheckpointStore:
        part = self.spec.checkpoints
        return cast(CheckpointStore, component("checkpoints", part.type)(part.config, state_dir=self.state_path))

    def masked(self) -> dict[str, Any]:
        """The document as resolved, defaults included and secrets hidden. Only this is ever shown."""
        return {"metadata": {"name": self.name, "tenant": self.tenant}, "spec": masked(self.spec)}


def component(family: str, name: str) -> Callable[..., Component[Any]]:
    """The class; checkpoint stores also take `state_dir`."""
    return cast(Callable[..., Component[Any]], registry.load(family, name))


def load(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> list[Pipeline]:
    """Every pipeline of a file, or one `DocumentError` with all that is wrong in it."""
    return load_all([path], environment)


def load_all(paths: Sequence[str | os.PathLike[str]], environment: Mapping[str, str] | None = None) -> list[Pipeline]:
    """Several files as one set: mistakes of all of them are reported together, and names are unique across them."""
    pipelines: list[Pipeline] = []
    loaded: list[Loaded] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            documents = read(path, environment)
        except DocumentError as error:
            problems += error.problems
            continue
        except ConfigError as error:
            problems.append(Problem(str(path), 0, (), error.what, error.fix))
            continue
        for document in documents:
            checked, found = resolve(document)
            problems += found
            if checked is None:
                continue
            name, spec = checked.metadata.name, checked.spec
            twin = next((p for p in pipelines if p.name == name), None)
            if twin:
                problems.append(
                    document.problem(
                        ("metadata", "name"),
                        f'two pipelines are called "{name}"',
                        f"The other one is in {twin.file}; they would share one state directory.",
                    )
                )
            pipeline = Pipeline(
                name, checked.metadata.tenant, document.file, spec, Path(spec.state_dir).expanduser().absolute() / name
            )
            twin = next((p for p in pipelines if p.source_id == pipeline.source_id and p.name != name), None)
            if twin:
                problems.append(
                    document.problem(
                        ("spec", "source", "config", "id"),
                        f'two pipelines have a source called "{pipeline.source_id}"',
                        f"The other one is {twin.name}. It is the first part of every event_id: two events would have "
                        "the same. Give each source an id of its own.",
                    )
                )
            pipelines.append(pipeline)
            loaded.append((document, name, spec))
    problems += clashes(loaded)
    if problems:
        raise DocumentError.of(problems)
    return pipelines
