"""A directory or bucket prefix, through `pyarrow.fs`: the few operations the files sink needs, with their durability.

On a local disk, what `publish` and `put` did survives a power cut. An object store is durable by itself, and an
object appears when its upload is complete.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tidemill.disk.private import sync_path
from tidemill.disk.replace import publish_file

_FLAT = ("s3", "gcs", "abfs")  # no folders: making one would leave an empty object


@dataclass(frozen=True, slots=True)
class FileStore:
    """Names are relative to `root`, with slashes."""

    files: Any
    root: str

    @classmethod
    def at(cls, path: str) -> FileStore:
        """A path, or a URI such as `s3://bucket/prefix`."""
        if "://" in path:
            files, root = fs.FileSystem.from_uri(path)
            return cls(files, root.rstrip("/"))
        return cls(fs.LocalFileSystem(), os.path.abspath(path))

    @property
    def local(self) -> bool:
        return bool(self.files.type_name == "local")

    def create(self, name: str, compression: str | None = None) -> Any:
        """A stream to write. Whatever stood there is replaced."""
        self._make_folder(name)
        return self.files.open_output_stream(self._path(name), compression=compression)

    def publish(self, draft: str, name: str) -> None:
        """Gives a closed file its final name, replacing what had it: a reader sees all of it or nothing.

        Where there is no rename (S3), this is a copy inside the store, which appears as a whole.
        """
        self._make_folder(name)
        if self.local:
            publish_file(Path(self._path(draft)), Path(self._path(name)))
        else:
            self.files.move(self._path(draft), self._path(name))

    def put(self, name: str, content: bytes) -> None:
        """Whole or not at all, also when several lanes put the same name at once: each has a draft of its own."""
        draft = f"{name}.{uuid.uuid4().hex[:12]}.draft"
        with self.create(draft) as stream:
            stream.write(content)
        self.publish(draft, name)

    def get(self, name: str) -> bytes | None:
        try:
            with self.files.open_input_stream(self._path(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def list(self, folder: str = "") -> list[str]:
        """Base names of files and folders in it, sorted; none if it is not there."""
        selector = fs.FileSelector(self._path(folder), allow_not_found=True)
        return sorted(info.base_name for info in self.files.get_file_info(selector))

    def size(self, name: str) -> int:
        return int(self.files.get_file_info(self._path(name)).size)

    def remove(self, name: str) -> None:
        """It may be gone already: another lane tidies the same batch."""
        try:
            self.files.delete_file(self._path(name))
        except FileNotFoundError:
            return

    def probe(self) -> str:
        """Empty if the place is there and may be written, as far as can be seen without writing; else what is wrong."""
        try:
            info = self.files.get_file_info(self.root)
        except (OSError, pa.ArrowException) as error:
            return str(error)
        if info.type is fs.FileType.File:
            return "it is a file, not a folder"
        if self.local:
            there = self.root
            while not os.path.exists(there):
                there = os.path.dirname(there)
            if not os.access(there, os.W_OK | os.X_OK):
                return f"{there} may not be written"
        return ""

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _make_folder(self, name: str) -> None:
        if self.files.type_name in _FLAT:
            return
        if not self.local:
            self.files.create_dir(os.path.dirname(self._path(name)), recursive=True)
            return
        folder = os.path.dirname(self._path(name))
        made = folder
        while not os.path.isdir(made):
            made = os.path.dirname(made)
        if made != folder:
            os.makedirs(folder, exist_ok=True)
            while folder != made:
                folder = os.path.dirname(folder)
                sync_path(Path(folder))
