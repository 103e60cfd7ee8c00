"""Writes the pages of docs/reference/ that code can write, and what the gRPC interface compiles to.

`--check` writes nothing and fails if one is stale.

A page is a function of `pages` that returns its text; add it to `PAGES`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib.resources import files
from itertools import chain
from pathlib import Path

from pages import ROOT, operations, settings, types

PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/clickhouse-types.md": types.clickhouse_page,
    "docs/reference/postgres-sink-types.md": types.postgres_sink_page,
    "docs/reference/starrocks-types.md": types.starrocks_page,
    "docs/delivery.md": operations.delivery_page,
    "docs/reference/environment.md": settings.environment_page,
    "docs/reference/errors.md": operations.error_page,
    "docs/reference/metrics.md": operations.metric_page,
    "docs/reference/postgres-types.md": types.type_page,
    "docs/reference/mysql-types.md": types.mysql_type_page,
    "docs/reference/sqlite-types.md": types.sqlite_type_page,
    "docs/reference/components.md": settings.component_page,
    "docs/reference/pipeline.md": settings.pipeline_page,
    "docs/reference/wire-types.md": types.format_page,
    "docs/reference/pipeline.schema.json": settings.document_page,
}


def interface_files() -> dict[str, bytes]:
    """What the gRPC interface is compiled to: descriptors for programs, stubs for type checkers."""
    from grpc_tools import protoc

    sources = [f"tidemill/api/proto/{name}.proto" for name in ("operations", "flows")]
    google = str(files("grpc_tools").joinpath("_proto"))
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        binary = directory / "interface.binpb"
        given = ["protoc", f"-I{ROOT / 'src'}", f"-I{google}", f"--descriptor_set_out={binary}", f"--pyi_out={made}"]
        if protoc.main([*given, *sources]) != 0:
            raise SystemExit("the gRPC interface does not compile")
        found = {path.name: path.read_bytes() for path in directory.rglob("*.*") if path.is_file()}
    return {f"src/tidemill/api/proto/{name}": content for name, content in sorted(found.items())}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for name, content in chain(interface_files().items(), ((name, page().encode()) for name, page in PAGES.items())):
        path = ROOT / name
        if path.exists() and path.read_bytes() == content:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for name in stale:
        sys.stdout.write(f"{name} is stale: run make docs\n" if check else f"wrote {name}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
