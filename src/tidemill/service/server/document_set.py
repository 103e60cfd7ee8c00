"""The documents of a server: read from files or sent over the API, and checked as one set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidemill.config import DocumentError, Pipeline, Problem
from tidemill.config.confine import Confinement, violations
from tidemill.config.document import Document
from tidemill.config.pipeline import read_overridden, resolve_all
from tidemill.config.posted import UsedValues, document_of
from tidemill.config.spec import Spark
from tidemill.errors import ConfigError
from tidemill.retry import RetryPolicy
from tidemill.service.run.once import check_ends
from tidemill.service.server.restarts import POLICY


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """`state_dir` is where pipelines of the API keep their state; `state_uri` a database for the state of pipelines
    that name none. `trial_seconds` is how long a changed pipeline may take to show whether it can start. `runs`: the
    pipelines that this process may run; None means all, an empty set leaves them to workers. `environment` has the
    variables that documents refer to; it is never printed."""

    files: tuple[Path, ...] = ()
    state_dir: Path = Path(".tidemill")
    state_uri: str | None = None
    confinement: Confinement = field(default_factory=Confinement)
    trial_seconds: float = 20.0
    runs: frozenset[str] | None = None
    restarts: RetryPolicy = POLICY
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False, compare=False)

    @property
    def is_worker(self) -> bool:
        """Servers look after documents and their audit trail; a worker only runs pipelines."""
        return bool(self.runs)


class DocumentSet:
    def __init__(self, settings: ControlSettings) -> None:
        self._settings = settings

    def read_files(self, beside: Sequence[Document]) -> dict[str, tuple[Document, Pipeline]]:
        """Every pipeline of the files, by name. `DocumentError` with all that is wrong in them, or between them and the
        documents `beside` them."""
        documents: list[Document] = []
        problems: list[Problem] = []
        for path in _files(self._settings.files):
            try:
                documents += read_overridden(path, self._settings.environment)
            except DocumentError as error:
                problems += error.problems
        documents = [self._with_state(each) for each in documents]
        pipelines = resolve_all([*documents, *beside], problems)
        check_ends(pipelines)
        return {pipeline.name: (each, pipeline) for each, pipeline in zip(documents, pipelines, strict=False)}

    def resolve(
        self, several: Sequence[Mapping[str, Any]], others: Sequence[Document]
    ) -> list[tuple[Document, Pipeline]]:
        """Documents of the API among the others. `DocumentError` with everything that is wrong in them, or reaches
        further than such a document may."""
        state_dir = str(self._settings.state_dir)
        documents = [self._with_state(self._expand(data), state_dir) for data in several]
        pipelines = resolve_all([*others, *documents])[len(others) :]
        check_ends(pipelines)
        found = [each for pipeline in pipelines for each in self._violations(pipeline)]
        if found:
            raise DocumentError.of(found)
        # They name no Spark of their own, also where the default is written out: they run on that of the files.
        return list(zip(documents, map(_without_spark, pipelines), strict=True))

    def values_used(self, data: Mapping[str, Any]) -> UsedValues:
        return UsedValues(data, self._settings.confinement.environment(self._settings.environment))

    def _violations(self, pipeline: Pipeline) -> list[Problem]:
        settings = self._settings
        return violations(
            pipeline, settings.confinement, state_dir=str(settings.state_dir), state_uri=settings.state_uri
        )

    def _expand(self, data: Mapping[str, Any]) -> Document:
        environment = self._settings.confinement.environment(self._settings.environment)
        try:
            return document_of(data, f"pipeline {name_in(data)} (API)", environment)
        except DocumentError as error:
            raise DocumentError.of(
                replace(each, fix=f"{each.fix} A document of the API may use only variables that --allow-env names.")
                for each in error.problems
            ) from error

    def _with_state(self, document: Document, state_dir: str | None = None) -> Document:
        """Says where the server keeps the state of a pipeline whose document does not."""
        spec = document.data.get("spec") if isinstance(document.data, dict) else None
        if not isinstance(spec, dict):
            return document
        ours = {"state_dir": state_dir, "state_uri": self._settings.state_uri}
        given = {name: value for name, value in ours.items() if value is not None and name not in spec}
        return replace(document, data={**document.data, "spec": {**spec, **given}})


def _without_spark(pipeline: Pipeline) -> Pipeline:
    own = pipeline.spec.spark.model_dump(exclude={"master", "conf"}, exclude_unset=True)
    return replace(pipeline, spec=pipeline.spec.model_copy(update={"spark": Spark(**own)}))


def name_in(data: Mapping[str, Any]) -> str:
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        raise ConfigError("the pipeline has no name", where="metadata.name", fix="Give it one: letters, digits, -, _.")
    return name


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """A directory stands for its YAML files, in the order of their names."""
    for path in paths:
        if path.is_dir():
            yield from sorted(each for each in path.iterdir() if each.suffix in (".yaml", ".yml"))
        else:
            yield path
