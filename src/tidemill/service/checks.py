"""The checks behind `tidemill doctor`. Each one passes, warns or fails; none raises, none changes anything."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tidemill.capture.confirmed import read_confirmed
from tidemill.capture.status import read_status
from tidemill.config import Pipeline
from tidemill.config.advice import fill_in
from tidemill.config.notes import notes
from tidemill.contracts import Check, Outcome, Resting, SnapshotSource
from tidemill.errors import TidemillError
from tidemill.log import LogReader
from tidemill.log.store import masked_uri
from tidemill.service.notice_checks import check_notices
from tidemill.service.processor_checks import check_processors
from tidemill.service.run.ownership import find_copy
from tidemill.service.snapshot.uncopied import NOT_COPIED, START_COPY, find_uncopied, first_names
from tidemill.service.units import human_bytes
from tidemill.state import find_store, inspect_store
from tidemill.stream.position.commit_policy import policy_of

_JAVA = 17  # what Spark 4 asks for
_LITTLE_SPACE = 1 << 30
_INSTALL = "Install the extra that this component needs."


def machine() -> Iterator[Check]:
    """Python, Java and Spark."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Check("Python", Outcome.PASS, version)
    yield java()
    yield spark()


def pipeline(subject: Pipeline) -> Iterator[Check]:
    """Whatever the components say about themselves, the places this pipeline writes to, then notices that stand."""
    details = set()
    for check in _pipeline(subject):
        details.add(check.detail)
        yield replace(check, fix=fill_in(check.fix, subject))
    for check in check_notices(subject, details):
        yield replace(check, fix=fill_in(check.fix, subject))


def _pipeline(subject: Pipeline) -> Iterator[Check]:
    spec = subject.spec
    rest = None
    try:
        rest = read_resting(subject)
    except TidemillError as error:
        yield Check("position", Outcome.FAIL, f"it cannot be read: {error.what}", error.fix)
    yield from _component(f"source {spec.source.type}", subject.build_source, lambda source: source.doctor(rest))
    for processor in spec.processors:
        label = f"processor {processor.config.id} ({processor.type})"
        yield from _component(label, partial(subject.build_processor, processor))
    yield from check_processors(subject)
    yield from _not_copied(subject)
    of_drift = spec.schema_sensing.drift.sink
    for sink in (*spec.sinks, *((of_drift,) if of_drift is not None else ())):
        label = f"sink {sink.config.id} ({sink.type})"
        yield from _component(label, partial(subject.build_sink, sink))
    yield from _component(f"checkpoints {spec.checkpoints.type}", subject.build_checkpoints)
    if spec.checkpoints.type == "memory":
        yield Check(
            "checkpoints",
            Outcome.WARN,
            "kept in memory: a restart begins anew",
            "Use `checkpoints: {type: file}` unless that is meant.",
        )
    for what, fix in notes(subject):
        yield Check("lanes", Outcome.WARN, what, fix)
    yield state_directory(subject)
    yield state_store(subject)
    yield log(subject)


def _not_copied(subject: Pipeline) -> Iterator[Check]:
    """Tables with rows that nobody copies. Whatever keeps them from being asked is said by the source's own checks."""
    source = subject.build_source()
    if not isinstance(source, SnapshotSource) or subject.snapshot_config is not None:
        return
    try:
        with ExitStack() as stack:
            reader = stack.enter_context(closing(source.snapshot_reader()))
            state = find_store(subject.state_uri)
            snapshots = stack.enter_context(closing(state)).snapshots if state is not None else None
            filled = find_uncopied(subject, snapshots, reader)
            begun = bool(LogReader(subject.log_uri).tail().position)
    except TidemillError:
        return
    if filled:
        what = f"rows that are there already are not copied: {first_names(filled)}"
        yield Check("snapshot", Outcome.WARN, what, START_COPY if begun else NOT_COPIED)


def java() -> Check:
    """The Java that Spark would start: JAVA_HOME first, then the PATH."""
    home = os.environ.get("JAVA_HOME")
    fix = f"Install a Java runtime {_JAVA} or newer (OpenJDK is fine) and set JAVA_HOME to it."
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None:
        return Check("Java", Outcome.FAIL, "not found", fix)
    try:
        answer = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Check("Java", Outcome.FAIL, f"{command} does not run: {error}", fix)
    found = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', answer.stderr + answer.stdout)
    if not found:
        return Check("Java", Outcome.WARN, f"{command} does not tell its version", fix)
    detail = f"{found[1]}{found[2]} at {command}"
    return Check("Java", Outcome.PASS, detail) if int(found[1]) >= _JAVA else Check("Java", Outcome.FAIL, detail, fix)


def spark() -> Check:
    try:
        import pyspark  # noqa: F401
    except Exception as error:  # noqa: BLE001  a broken installation fails in many ways
        return Check("Spark", Outcome.FAIL, f"PySpark cannot be imported: {error}", "Install Tidemill again with pip.")
    version = importlib.metadata.version("pyspark")
    pandas = importlib.metadata.version("pandas")
    if int(pandas.split(".")[0]) >= 3:
        return Check("Spark", Outcome.FAIL, f"PySpark {version} with pandas {pandas}", 'Run: pip install "pandas<3"')
    return Check("Spark", Outcome.PASS, f"PySpark {version}")


def log(subject: Pipeline) -> Check:
    uri = subject.log_uri
    if "://" not in uri:
        kept = subject.spec.log.keep_for_optional_bytes if len(policy_of(subject).groups) > 1 else 0
        return directory("change log", Path(uri), wanted=subject.spec.log.max_bytes + kept)
    from pyarrow import fs

    shown = masked_uri(uri)

    try:
        system, path = fs.FileSystem.from_uri(uri)
        info = system.get_file_info(path)
    except Exception as error:  # noqa: BLE001  every file system has errors of its own
        reason = str(error).replace(uri, shown)
        return Check("change log", Outcome.FAIL, f"{shown}: {reason}", "Check the URI and the credentials for it.")
    found = "is there" if info.type != fs.FileType.NotFound else "will be made"
    return Check("change log", Outcome.PASS, f"{shown} {found}")


def state_directory(subject: Pipeline) -> Check:
    """Whether it can be written, and is the pipeline's own and no copy."""
    try:
        problem = find_copy(subject)
    except OSError:  # what is wrong with the place itself
        problem = None
    if problem is not None:
        return Check("state directory", Outcome.FAIL, problem.what, problem.fix)
    return directory("state directory", subject.state_path)


def state_store(subject: Pipeline) -> Check:
    name = "state store"
    try:
        found = inspect_store(subject.state_uri)
    except TidemillError as error:
        return Check(name, Outcome.FAIL, f"{error.where}: {error.what}", error.fix)
    except ImportError as error:
        return Check(name, Outcome.FAIL, str(error), _INSTALL)
    if found.problem:
        fix = "Grant that, or give another state_uri; without one it is state.sqlite beside the state directory."
        return Check(name, Outcome.FAIL, f"{found.where}: {found.problem}", fix)
    if not found.version:
        return Check(name, Outcome.PASS, f"{found.where} will be made")
    later = f", is brought to version {found.latest} at the next start" if found.version < found.latest else ""
    return Check(name, Outcome.PASS, f"{found.where}, version {found.version}{later}")


def directory(name: str, path: Path, wanted: int = 0) -> Check:
    """May we write there, or make it? `wanted` bytes may come to lie in it."""
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        return Check(name, Outcome.FAIL, f"{existing} is not a directory", "Give another state_dir or log.uri.")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(
            name, Outcome.FAIL, f"{existing} is not writable", f"Give user {os.getuid()} the right to write in it."
        )
    free = shutil.disk_usage(existing).free
    if free < max(wanted, _LITTLE_SPACE):
        return Check(
            name,
            Outcome.WARN,
            f"{path}: {human_bytes(free)} free" + (f", the log may take {human_bytes(wanted)}" if wanted else ""),
            "Free some space, or lower log.max_bytes: capture waits when the log is full.",
        )
    return Check(name, Outcome.PASS, f"{path}, {human_bytes(free)} free")


def read_resting(subject: Pipeline) -> Resting | None:
    """Where it goes on, if it ever ran: the end of its log, else its checkpoint."""
    state = subject.state_path
    status = read_status(state)
    if status is None:
        return None
    tail = LogReader(subject.log_uri).tail()
    after = tail.position
    if not after:
        store = subject.build_checkpoints()
        try:
            saved = store.load(subject.name)
        finally:
            store.close()
        after = saved.position if saved else after
    known = find_store(subject.state_uri)
    try:
        confirmed = read_confirmed(known, subject.name, state, tail.offset)
    finally:
        if known is not None:
            known.close()
    return Resting(after, confirmed, status.time, partial(_recall, subject)) if after or confirmed else None


def _recall(subject: Pipeline, name: str) -> bytes | None:
    schemas = subject.find_registry()
    if schemas is None:
        return None
    try:
        return schemas.recall(name)
    finally:
        schemas.close()


def _component(
    label: str, build: Callable[[], Any], ask: Callable[[Any], Iterable[Check]] = lambda component: component.doctor()
) -> Iterator[Check]:
    try:
        component = build()
    except TidemillError as error:
        yield Check(label, Outcome.FAIL, error.what, error.fix or _INSTALL)
        return
    except ImportError as error:
        yield Check(label, Outcome.FAIL, str(error), _INSTALL)
        return
    try:
        for check in ask(component):
            yield Check(f"{label}: {check.name}", check.outcome, check.detail, check.fix)
    except ModuleNotFoundError as error:
        yield Check(label, Outcome.FAIL, f"{error.name} is not installed", f"pip install {error.name}")
    except Exception as error:  # noqa: BLE001  a check that breaks is a failed check, not the end of the examination
        yield Check(
            label, Outcome.FAIL, f"the check itself broke: {type(error).__name__}: {error}", "Please report this."
        )
    finally:
        component.close()
