"""Pages for who runs pipelines: errors, metrics, and what each sink promises."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

import tidemill
from pages import NOTE, ROOT, has_page
from tidemill import errors, registry
from tidemill.telemetry import metrics


def error_page() -> str:
    _import_everything()
    rows = []
    for depth, kind in _tree(errors.TidemillError):
        name, retried = f"{'&emsp;' * depth}`{kind.__name__}`", "yes" if _retried(kind) else "no"
        rows.append(f"| {name} | `{_code(kind)}` | {kind.exit_code} | {retried} |")
    head = [
        "# Errors\n",
        NOTE,
        "An error says what happened, where, and what to try next. The code names the kind of error for programs: it",
        "stands in what commands print with `--json`, in a pipeline's status and in events, and stays the same from",
        "version to version. The exit code is what the command line ends with; a retried error is tried again with",
        "growing pauses before it stops the pipeline.\n",
        "```json",
        _shown(errors.PositionLost("the slot is gone", where='source "orders"', fix="Run: tidemill recover FILE")),
        "```\n",
        "`bases` are the codes of what the error is a kind of, nearest first. An error of another package may have a",
        "code that this page does not list; its `bases` are listed.\n",
        "| error | code | exit code | retried |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def metric_page() -> str:
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.about} |"
        for one in metrics.Metrics().catalog
    ]
    head = [
        "# Metrics\n",
        NOTE,
        "What a running pipeline counts, in the names that Prometheus knows them by. Counters begin at zero with the",
        "process, go on when a document is changed or read again, and never go backwards.",
        "Beside each counter and histogram, Prometheus' library for Python exports `…_created`: when it began.",
        "They are fed by the receipts of delivered batches and by capture's status.",
        "[`tidemill serve --metrics`](../server.md) serves them over HTTP; a program that runs pipelines reads them",
        "from its `tidemill.telemetry.metrics.Metrics`.\n",
        "| metric | kind | labels | what it counts |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def delivery_page() -> str:
    rows = []
    for name in registry.names("sinks"):
        kind = registry.load("sinks", name)
        rows.append(f"| {_page(name)} | {_tier(kind)} | {kind.mechanism} | {_proofs(name)} |")
    head = [
        "# Delivery\n",
        NOTE,
        "Every change is delivered at least once: a checkpoint is saved only after the sinks have answered, and the",
        "source hears only of positions that a checkpoint covers. *Effectively once* means that a replay of any batch",
        "changes nothing at the destination. Which of the two holds, by what, and the tests that show it:\n",
        "| sink | tier | mechanism | shown by |",
        "|---|---|---|---|",
        *rows,
        "",
        "*Kills*: [test_kills](../tests/delivery/test_kills.py) runs what a Spark worker runs, without Spark, and",
        "ends it with `kill -9` before the write, after the write and before its receipt, after the receipts and",
        "before the checkpoint, and after the checkpoint. It kills the destination's server during a run and loses",
        "its answers on the way. Then source and destination are compared: row by row where the destination holds",
        "tables, event by event and in order per key where it holds events. What came twice is counted against the",
        "tier. Kills of capture, of Spark's driver and of its workers are in [tests/crash](../tests/crash).",
        "",
        "The servers of these tests are real, with these exceptions. ClickHouse is its real engine (chDB) behind an",
        "HTTP front of ours. StarRocks is a stand-in, written from its documentation. Webhooks go to our own receiver.",
        "Where no Kafka broker can be fetched, librdkafka's mock takes its place, and the test run's header says so.",
        "",
        "Rows that were in the tables before come with a [snapshot](snapshots.md#what-is-promised): none is missing,",
        "none is brought back, each event is there once. [test_snapshot](../tests/crash/test_snapshot.py) kills",
        "whoever takes part in it. After a [lost position](snapshots.md#recovering-from-a-lost-position) a recovery",
        "makes sinks with tables equal to the source again, also in rows that were deleted meanwhile, whatever step it",
        "is killed at ([the command](../tests/service/snapshot/test_recovery.py),",
        "[a run](../tests/crash/test_recovery.py), [each sink](../tests/sinks/state/test_recovery.py)).",
        "Whether a destination has what the source has says [`tidemill verify`](verify.md), row by row,",
        "while both change.",
        "",
        "What a sink refuses for good goes to the [dead letters](dead-letters.md), if they are on, or stops the",
        "pipeline. Which sinks hold the checkpoint back is the [commit policy](operations.md#several-sinks).",
    ]
    return "\n".join([*head, ""])


def _tree(kind: type[errors.TidemillError], depth: int = 0) -> Iterator[tuple[int, type[errors.TidemillError]]]:
    yield depth, kind
    for child in sorted(kind.__subclasses__(), key=lambda child: (child.__module__, child.__name__)):
        yield from _tree(child, depth + 1)


def _code(kind: type[errors.TidemillError]) -> str:
    if "code" not in kind.__dict__:
        raise SystemExit(f"{kind.__module__}.{kind.__name__} has no `code` of its own")
    return kind.code


def _shown(error: errors.TidemillError) -> str:
    return orjson.dumps({"error": errors.to_data(error)}).decode()


def _retried(kind: type[errors.TidemillError]) -> bool:
    return errors.is_retryable(kind.__new__(kind))


def _tier(sink: Any) -> str:
    """A tier that depends on the settings is a property, and its docstring says how."""
    tier = inspect.getattr_static(sink, "tier")
    return (inspect.getdoc(tier) or "") if isinstance(tier, property) else str(tier)


def _page(sink: str) -> str:
    """Its name, as a link where it has a page of its own."""
    return f"[`{sink}`](sinks/{sink}.md)" if has_page("sinks", sink) else f"`{sink}`"


def _proofs(sink: str) -> str:
    destination, own = f"tests/delivery/destinations/{sink}.py", f"tests/sinks/test_{sink}.py"
    found = [("kills", destination), (Path(own).stem, own), (f"tests of {sink}", f"tests/sinks/{sink}")]
    return ", ".join(f"[{name}](../{path})" for name, path in found if (ROOT / path).exists())


def _import_everything() -> None:
    # Some components have errors of their own, known only once their module is loaded.
    for module in pkgutil.walk_packages(tidemill.__path__, "tidemill."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
