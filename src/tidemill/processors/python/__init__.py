"""Runs a Python function of the user's over events: Arrow batches, or one dictionary per event.

The function runs in the Spark worker, with all that the worker may do: it is trusted code. docs/processors/python.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from tidemill.contracts import BaseProcessor, Check, Outcome, ProcessorConfig
from tidemill.errors import ConfigError, ProcessingError, TidemillError
from tidemill.model.block import ROUTE, Block
from tidemill.model.derived import SIDES, derived_table, reshape, with_column
from tidemill.model.table import Column, Table
from tidemill.processors._shared.types import cast, data_type
from tidemill.processors.python.code import CodeProblem, check_function
from tidemill.processors.python.events import copy_event, from_events, keep_event, to_events
from tidemill.processors.python.fields import get, put

__all__ = ["PythonConfig", "PythonProcessor", "get", "put"]

_META = ("offset", "position", "tx_id", "ordinal", "commit_time")


class PythonConfig(ProcessorConfig):
    function: str = Field(
        default="process",
        description="package.module:function that the workers can import; with `file`, a function of that file.",
    )
    file: Path | None = Field(default=None, description="A Python file, where the workers can read it.")
    style: Literal["arrow", "event"] = Field(
        default="arrow", description="What the function is given: a pyarrow.RecordBatch, or one event as a dictionary."
    )

    @field_validator("function")
    @classmethod
    def _name(cls, name: str) -> str:
        module, _, function = name.rpartition(":")
        if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".") if module):
            raise ValueError(f'"{name}" is no function: write package.module:function, or function with `file`')
        return name

    @model_validator(mode="after")
    def _check_function(self) -> PythonConfig:
        if (":" in self.function) == (self.file is not None):
            raise ValueError("give either function: package.module:function, or file and the name of its function")
        return self


class PythonProcessor(BaseProcessor[PythonConfig]):
    Config = PythonConfig

    def __init__(self, config: PythonConfig) -> None:
        super().__init__(config)
        self._function: Callable[[Any], Any] | None = None

    def derive(self, table: Table) -> Table | None:
        return None  # only what the function returns tells

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        function = self._load()
        for block in blocks:
            yield self._batch(function, block) if self.config.style == "arrow" else self._events(function, block)

    def doctor(self) -> Iterable[Check]:
        try:
            self._load()
            yield Check("function", Outcome.PASS, self.config.function)
        except TidemillError as error:
            yield Check("function", Outcome.FAIL, error.what, error.fix)

    def check_code(self) -> None:
        try:
            check_function(self.config.file, self.config.function)
        except CodeProblem as error:
            raise ConfigError(str(error), where=f'processor "{self.config.id}"', fix=error.fix) from error

    def _batch(self, function: Callable[[Any], Any], block: Block) -> Block:
        """Which event made it fail nobody knows: an error is one of the whole block."""
        try:
            made = function(block.batch)
        except Exception as error:
            raise ProcessingError(dict.fromkeys(map(int, block.offsets()), self._reason(error))) from error
        if not isinstance(made, pa.RecordBatch):
            raise self._wrong(f"it returned {type(made).__name__}, not a pyarrow.RecordBatch")
        for name in (*_META, "op"):
            if made.schema.get_field_index(name) < 0:
                raise self._wrong(f'its batch has lost the column "{name}"')
            if made.schema.field(name).type != block.batch.schema.field(name).type:
                raise self._wrong(f'its batch has the column "{name}" with another type')
        if (at := made.schema.get_field_index("route")) >= 0 and made.schema.field(at).type != ROUTE:
            raise self._wrong(f'its column "route" must be {ROUTE}')
        return self._restructure(made, block)

    def _restructure(self, made: pa.RecordBatch, block: Block) -> Block:
        """The batch as a block: its columns are those of the images it has now."""
        known = {c.name: c for c in block.table.columns}
        columns: dict[str, Column] = {}
        images: dict[str, pa.StructArray | None] = {}
        for side in ("after", "before", "key"):
            at = made.schema.get_field_index(side)
            if at < 0:
                continue
            struct = made.column(at)
            if not pa.types.is_struct(struct.type):
                raise self._wrong(f'its column "{side}" is no struct')
            for field in struct.type:
                same = field.name in known and known[field.name].type.arrow == field.type
                column = known[field.name] if same else Column(field.name, data_type(field.type))
                columns.setdefault(field.name, column)
            images[side] = _to_types(struct, columns)
        ordered = [columns[name] for name in known if name in columns]
        ordered += [column for name, column in columns.items() if name not in known]
        table = block.table if ordered == list(block.table.columns) else derived_table(block.table, ordered)
        rest = made.select([name for name in made.schema.names if name not in SIDES])
        return reshape(Block(block.table, rest), table, images, [c.name if c.name in known else None for c in ordered])

    def _events(self, function: Callable[[Any], Any], block: Block) -> Block:
        rows: list[tuple[int, dict[str, Any]]] = []
        reasons: dict[int, str] = {}
        offsets = block.offsets()
        originals = to_events(block, self.source_id)
        for number, event in enumerate(originals):
            try:
                made = function(copy_event(event))
            except Exception as error:  # noqa: BLE001  the user's code raises what it likes
                reasons[int(offsets[number])] = self._reason(error)
                continue
            for one in made if isinstance(made, list) else [] if made is None else [made]:
                if not isinstance(one, dict):
                    raise self._wrong(f"it returned {type(one).__name__}, not an event (a dictionary), a list or None")
                try:
                    rows.append((number, keep_event(one)))
                except ValueError as error:
                    reasons[int(offsets[number])] = str(error)
        if reasons:
            raise ProcessingError(reasons)
        made_block, routes = from_events(block, originals, rows)
        return made_block if routes is None else with_column(made_block, "route", routes)

    def _load(self) -> Callable[[Any], Any]:
        if self._function is None:
            module_name, _, name = self.config.function.rpartition(":")
            try:
                module = _from_file(self.config.file) if self.config.file else importlib.import_module(module_name)
            except Exception as error:
                raise self._wrong(f"{self.config.file or module_name} cannot be loaded: {error}") from error
            found = getattr(module, name, None)
            if not callable(found):
                raise self._wrong(f"{self.config.file or module_name} has no function called {name}")
            self._function = found
        return self._function

    def _reason(self, error: Exception) -> str:
        """Where it was raised, and which error. Its message may quote values."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
        said = f": {error}" if self.show_messages else ""
        places = ", ".join(
            f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in reversed(frames[:1] + frames[-1:])
        )
        line = f" in `{frames[-1].line}`" if frames and frames[-1].line else ""
        return f"{type(error).__name__}{said}{line} at {places}" if places else f"{type(error).__name__}{said}"

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(
            what, where=f'processor "{self.config.id}", {self.config.function}', fix="Mend the function."
        )


def _to_types(struct: pa.StructArray, columns: dict[str, Column]) -> pa.StructArray:
    kinds = [columns[field.name].type.arrow for field in struct.type]
    if all(field.type == kind for field, kind in zip(struct.type, kinds, strict=True)):
        return struct
    arrays = [cast(struct.field(number), kind) for number, kind in enumerate(kinds)]
    fields = [pa.field(field.name, kind) for field, kind in zip(struct.type, kinds, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=struct.is_null() if struct.null_count else None)


def _from_file(path: Path) -> Any:
    name = f"tidemill_processor_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


component = PythonProcessor
