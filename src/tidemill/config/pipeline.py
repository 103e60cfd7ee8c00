"""A pipeline ready to run: its checked spec, where its state lives, and its components when asked for."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tidemill import registry
from tidemill.config.document import Document, read
from tidemill.config.environment import document_of_environment, override
from tidemill.config.occupied import Loaded, clashes
from tidemill.config.problem import DocumentError, Problem
from tidemill.config.resolve import resolve
from tidemill.config.secrets import mask
from tidemill.config.spec import PipelineSpec, ProcessorSpec
from tidemill.config.spec.sink import SinkSpec
from tidemill.contracts import (
    BaseProcessor,
    CheckpointStore,
    Component,
    CopiedSourceConfig,
    Sink,
    SnapshotConfig,
    StateStore,
)
from tidemill.errors import ConfigError
from tidemill.schema.registry import SchemaRegistry
from tidemill.state import find_registry, is_shared, open_registry, open_store


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`state_path` is absolute: capture, driver and workers may have different working directories."""

    name: str
    tenant: str | None
    file: str
    spec: PipelineSpec
    state_path: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value that was given came from, by its path."""
    command_file: str | None = None
    """`file`, where it is one that a command can be given; a document of the API, or of variables alone, has none."""
    posted: bool = False
    """It came over the API of a server."""

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
    def registry_path(self) -> Path:
        """The structures of the source's tables, and what the source remembers, where no server shares the state."""
        return self.state_path / "registry.sqlite"

    def open_registry(self) -> SchemaRegistry:
        """Not connected yet. Where several servers share the state store it is there; else it is a file (ADR 49)."""
        if is_shared(self.state_uri):
            return SchemaRegistry(open_registry(self.state_uri, self.name), earlier=self.registry_path)
        return SchemaRegistry(self.registry_path)

    def find_registry(self) -> SchemaRegistry | None:
        """For who only looks: None where there is none yet. Changes nothing."""
        found = find_registry(self.state_uri, self.name) if is_shared(self.state_uri) else None
        if found is not None:
            registry = SchemaRegistry(found)
            if not (registry.is_empty() and self.registry_path.exists()):
                return registry
            registry.close()  # not taken over from the file yet
        return SchemaRegistry(self.registry_path) if self.registry_path.exists() else None

    @property
    def snapshot_config(self) -> SnapshotConfig | None:
        """How tables are copied; None where the document says nothing of it, or the source cannot."""
        config = self.spec.source.config
        return config.snapshot if isinstance(config, CopiedSourceConfig) else None

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

    def choose_sink(self, name: str | None) -> SinkSpec:
        """The sink of that name; without one the only sink. `ConfigError` where that names none."""
        specs = {spec.config.id: spec for spec in self.spec.sinks}
        if name is None and len(specs) == 1:
            return next(iter(specs.values()))
        if name in specs:
            return specs[name]
        what = "the pipeline has several sinks" if name is None else f'no sink is called "{name}"'
        raise ConfigError(what, where=self.file, fix=f"Name one with --sink: {', '.join(specs)}.")

    def build_sinks(self) -> list[Sink]:
        """In the order of the document, not connected yet."""
        return [self.build_sink(sink) for sink in self.spec.sinks]

    def build_sink(self, sink: SinkSpec) -> Sink:
        return cast(Sink, component("sinks", sink.type)(sink.config))

    def build_processor(self, processor: ProcessorSpec) -> BaseProcessor[Any]:
        return cast(BaseProcessor[Any], component("processors", processor.type)(processor.config))

    def build_checkpoints(self) -> CheckpointStore:
        part = self.spec.checkpoints
        return cast(CheckpointStore, component("checkpoints", part.type)(part.config, state_dir=self.state_path))

    def mask_secrets(self) -> dict[str, Any]:
        """The document as resolved, defaults included and secrets hidden. Only this is ever shown."""
        metadata = {"name": self.name, "tenant": self.tenant, "labels": dict(self.labels)}
        return {"metadata": metadata, "spec": mask(self.spec)}


def component(family: str, name: str) -> Callable[..., Component[Any]]:
    """The class; checkpoint stores also take `state_dir`."""
    return cast(Callable[..., Component[Any]], registry.load(family, name))


def load(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> list[Pipeline]:
    """Every pipeline of a file, or one `DocumentError` with all that is wrong in it."""
    return load_all([path], environment)


def load_all(paths: Sequence[str | os.PathLike[str]], environment: Mapping[str, str] | None = None) -> list[Pipeline]:
    """Several files as one set: mistakes of all of them are reported together, and names are unique across them."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            documents += read_overridden(path, environment)
        except DocumentError as error:
            problems += error.problems
        except ConfigError as error:
            problems.append(Problem(str(path), 0, (), error.what, error.fix))
    return resolve_all(documents, problems)


def read_overridden(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> list[Document]:
    """The documents of a file, with what the environment says of their fields (`config/environment.py`)."""
    chosen = os.environ if environment is None else environment
    return [override(document, chosen) for document in read(path, chosen)]


def load_environment(environment: Mapping[str, str] | None = None) -> Pipeline:
    """A pipeline that is given by variables alone."""
    (pipeline,) = resolve_all([document_of_environment(os.environ if environment is None else environment)])
    return pipeline


def resolve_all(documents: Sequence[Document], known: Sequence[Problem] = ()) -> list[Pipeline]:
    """The pipelines of documents that were read already, as one set. `known` problems are reported with what is found
    here."""
    pipelines: list[Pipeline] = []
    loaded: list[Loaded] = []
    problems = list(known)
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
        state_path = Path(spec.state_dir).expanduser().absolute() / name
        pipeline = Pipeline(
            name, checked.metadata.tenant, document.file, spec, state_path, labels=checked.metadata.labels,
            origins=document.origins(), command_file=document.command_file,
                posted=document.posted,
        )  # fmt: skip
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
