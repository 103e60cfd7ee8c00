"""Sinks into a folder, and what is published there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks.files import FilesConfig, FilesSink


def sink(path: Path | str, **options: Any) -> FilesSink:
    return FilesSink(FilesConfig(id="files", path=str(path), **options))


def published(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*.*") if p.is_file() and "_tidemill" not in p.parts)


def offsets(path: Path) -> list[int]:
    return sorted(json.loads(line)["offset"] for file in published(path) for line in file.read_bytes().splitlines())


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in published(path)}


def write_all(path: Path, deliveries: list[Delivery], **options: Any) -> None:
    """Each lane in a worker of its own, as after a restart."""
    for delivery in deliveries:
        sink(path, **options).write(delivery)


def delivery_of(blocks: list[Block], start: int, end: int) -> Delivery:
    return Delivery("shop", "s", start, end, 0, 1, lambda: iter(blocks))
