"""Runs the user's JavaScript over events: `processBatch(events)` or `process(event)`, in V8, held by limits.

Block to columns (columns.py), through the engine's process (engine.py, sandbox.py, prelude.js), and back (results.py):
only what the script changed is converted again. docs/processors/javascript.md is written for who writes scripts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from tidemill.contracts import BaseProcessor, Check, Outcome, ProcessorConfig
from tidemill.errors import ConfigError, ProcessingError, TidemillError
from tidemill.model.block import Block, Op
from tidemill.model.config import Config
from tidemill.model.derived import unfit_images
from tidemill.model.table import Table
from tidemill.model.types import DataType
from tidemill.processors.javascript.columns import encode
from tidemill.processors.javascript.engine import Answer, Engine, EngineBroken, LimitExceeded, ScriptFailed
from tidemill.processors.javascript.results import decode
from tidemill.processors.javascript.values import TYPES
from tidemill.telemetry.events import emit

TYPINGS = Path(__file__).with_name("tidemill.d.ts")
"""Types of events, for editors."""

_COPIES = 8  # the engine has about as many of a call's bytes: as sent, in the arena, as text, as values
_LOG_LINES = 20  # of one call
_LOG_LINES_A_MINUTE = 200
_NAME = r"[A-Za-z_$][\w$]*"
# Messages made of the script's own words, which the groups are. Any other may quote values.
_MESSAGES_OF_CODE = {
    "TypeError": re.compile(
        rf"({_NAME}(?:\.{_NAME})*) is not (?:a function|a constructor|iterable)|"
        rf"Cannot (?:read|set) properties of (?:undefined|null) \((?:reading|setting) '({_NAME})'\)|"
        rf'column "({_NAME})" was given an? [\w ]+|route\(\) knows topic, key and headers, not "({_NAME})"|'
        r"the name of a new column is longer than \d+ characters, or no text|a call adds more than [\d,]+ columns|"
        r"Assignment to constant variable\."
    ),
    "ReferenceError": re.compile(rf"({_NAME}) is not defined|Cannot access '({_NAME})' before initialization"),
}
_SETS_OP = re.compile(r"""\bop\b["']?\]?\s*(?:=(?!=)|:)""")
_CLASSES = ("Error", "EvalError", "RangeError", "ReferenceError", "SyntaxError", "TypeError", "URIError")


class LimitsConfig(Config):
    cpu_ms: int = Field(
        default=1000, ge=1, description="CPU time of one call of the script, garbage collection included."
    )
    timeout_ms: int = Field(default=5000, ge=1, description="How long one call of the script may take.")
    mem_mb: int = Field(default=128, ge=8, le=4096, description="Memory of the script, with the events of a call.")


class JavascriptConfig(ProcessorConfig):
    inline: str | None = Field(
        default=None, description="The script itself. It defines processBatch(events) or process(event)."
    )
    file: Path | None = Field(default=None, description="A file with the script, where the workers can read it.")
    limits: LimitsConfig = Field(
        default_factory=LimitsConfig, description="What one call may use; exceeding it is an error of its events."
    )
    deterministic: bool = Field(
        default=True,
        description="Whether Date.now() is the commit time of the event and Math.random() is seeded by its identity.",
    )
    integers: Literal["auto", "bigint"] = Field(
        default="auto",
        description="64-bit integers beyond 2^53: as strings (auto), or all of a column that has one as BigInt.",
    )
    columns: dict[str, Literal["integer", "number", "text", "boolean", "json", "timestamp"]] = Field(
        default_factory=dict,
        description="Types of columns that the script adds; else the first value decides, and a number is a double.",
    )
    max_events: int = Field(default=4096, ge=1, le=65536, description="Events of one call at most.")

    @model_validator(mode="after")
    def _one_script(self) -> JavascriptConfig:
        if (self.inline is None) == (self.file is None):
            raise ValueError("give the script either as inline or as file")
        return self


class JavascriptProcessor(BaseProcessor[JavascriptConfig]):
    """One engine, kept between batches: what the script keeps in its variables stays until the engine is replaced."""

    Config = JavascriptConfig

    def __init__(self, config: JavascriptConfig) -> None:
        super().__init__(config)
        self._most: dict[str, float] = {}  # that one call used: cpu_ms, timeout_ms; with `show_messages` also mem_mb
        self._name = config.file.name if config.file is not None else f"{config.id}.js"
        self._source: str | None = None
        self._engine: Engine | None = None
        self._declared = {name: TYPES[kind] for name, kind in config.columns.items()}
        self._minute, self._logged = 0, 0

    def derive(self, table: Table) -> Table | None:
        return None  # only what the script returns tells

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            reasons: dict[int, str] = {}
            made, fix = [], ""
            types = dict(self._declared)  # a column that an earlier call has made keeps its type in the next
            for piece in self._pieces(block):
                try:
                    made.append(self._run(piece, types))
                except ProcessingError as error:
                    reasons |= error.reasons
                    fix = fix or error.fix
            if reasons:
                raise ProcessingError(reasons, fix=fix)
            yield from (piece for piece in made if piece.rows)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def doctor(self) -> Iterable[Check]:
        try:
            engine = self._start()
            yield Check("script", Outcome.PASS, f"{self._name} loads in V8 {engine.v8}")
        except TidemillError as error:
            yield Check("script", Outcome.FAIL, error.what, error.fix)
        finally:
            self.close()

    def check_table(self, table: Table) -> None:
        own = next((name for name in self.config.columns if any(c.name == name for c in table.columns)), None)
        if own is not None:
            kind = next(column.type.native for column in table.columns if column.name == own)
            raise ConfigError(
                f'`columns` declares "{own}", which {table.full_name} has as {kind}: it stays {kind}',
                fix="Declare only columns that the script adds; set one of another name if it is to have another type.",
            )

    def check_code(self) -> None:
        try:
            self._start()
        finally:
            self.close()

    def _pieces(self, block: Block) -> Iterator[Block]:
        """What one call gets: `max_events`, fewer where rows are so large that their copies would fill the engine."""
        most, room = self.config.max_events, (self.config.limits.mem_mb << 20) // _COPIES
        if block.batch.nbytes > room:
            most = max(1, min(most, block.rows * room // int(block.batch.nbytes)))
        if block.rows <= most:
            yield block
            return
        for first in range(0, block.rows, most):
            yield Block(block.table, block.batch.slice(first, most))

    def _run(self, block: Block, types: dict[str, DataType]) -> Block:
        answer = self._ask(block)
        if "thrown" in answer.head:
            raise ProcessingError(self._culprits(block, answer.head["thrown"]))
        offsets = block.offsets()
        if "failed" in answer.head:
            raise ProcessingError({int(offsets[row]): self._reason(error) for row, error in answer.head["failed"]})
        own = {c.name for c in block.table.columns}
        learned = self.learned(block.table)
        types |= {c.name: c.type for c in learned.columns if c.name not in own} if learned is not None else {}
        if wrong := answer.head["errors"]:
            raise ProcessingError({int(offsets[row]): self._with_line(reason) for row, reason in wrong})
        made = decode(block, answer.head, answer.data, types)
        types |= {c.name: c.type for c in made.table.columns if c.name not in own}
        if (answer.head["op"] >= 0 or answer.head["there"]) and (unfit := unfit_images(made, block)):
            raise ProcessingError({at: self._with_line(reason) for at, reason in unfit.items()})
        return made

    def limit_usage(self) -> Mapping[str, tuple[float, float]]:
        limits = self.config.limits.model_dump()
        return {name: (used, limits[name]) for name, used in self._most.items()}

    def _ask(self, block: Block) -> Answer:
        engine = self._start()
        try:
            engine.measure = self.show_messages
            answer = engine.run(*encode(block, self.source_id))
            thrown = answer.head.get("thrown")
            if thrown and thrown["message"] == "Array buffer allocation failed":  # the operating system said no
                engine.close()
                raise LimitExceeded("mem_mb", f"it needed more than {self.config.limits.mem_mb} MB")
        except (EngineBroken, ScriptFailed) as error:
            reason = str(error) if isinstance(error, EngineBroken) else "it left V8 in a state that cannot go on"
            raise ProcessingError(dict.fromkeys(map(int, block.offsets()), f"{self._name}: {reason}")) from error
        except LimitExceeded as error:
            what = f"limits.{error.limit}: {error.detail}" if error.limit else error.detail
            raise ProcessingError(dict.fromkeys(map(int, block.offsets()), f"{self._name} exceeded {what}")) from error
        self._most["cpu_ms"] = max(self._most.get("cpu_ms", 0.0), answer.cpu_seconds * 1000)
        self._most["timeout_ms"] = max(self._most.get("timeout_ms", 0.0), answer.seconds * 1000)
        if "heap_bytes" in answer.head:
            self._most["mem_mb"] = max(self._most.get("mem_mb", 0.0), answer.head["heap_bytes"] / (1 << 20))
        self._log(answer.head["lines"], answer.head["unlogged"])
        return answer

    def _culprits(self, block: Block, thrown: dict[str, Any]) -> dict[int, str]:
        """The events that make processBatch throw, found by halves; all of them if none does alone."""
        reason = self._reason(thrown)
        if block.rows == 1:
            return {int(block.offsets()[0]): reason}
        found: dict[int, str] = {}
        half = block.rows // 2
        for first, count in ((0, half), (half, block.rows - half)):
            part = Block(block.table, block.batch.slice(first, count))
            answer = self._ask(part)
            if "thrown" in answer.head:
                found |= self._culprits(part, answer.head["thrown"])
        return found or dict.fromkeys(map(int, block.offsets()), reason)

    def _reason(self, error: dict[str, Any]) -> str:
        """Where it was thrown, and what. Messages are left out unless V8 makes them of the script's own words: others
        may quote values."""
        name, stack, message = error["name"], error["stack"], error["message"]
        if not (self.show_messages or name in _CLASSES or self._mentions(name)):
            name = "an error" if stack else "a value that is no Error"  # a script may name it after a value
        said = f": {message}" if message and (self.show_messages or self._is_of_code(name, message)) else ""
        if not stack:
            return f"{self._name}: {name}{said}"
        line = stack[0].rsplit("(", 1)[-1].split(":")
        text = ""
        if len(line) >= 3 and line[-2].isdigit():
            lines = self._script().splitlines()
            number = int(line[-2])
            text = f" in `{lines[number - 1].strip()[:120]}`" if number <= len(lines) else ""
        return f"{name}{said}{text} at " + ", ".join(stack)

    def _with_line(self, reason: str) -> str:
        """With the line that sets `op`, if it is about that and one line only does: nothing is thrown there."""
        lines = [(n, text) for n, text in enumerate(self._script().splitlines(), 1) if _SETS_OP.search(text)]
        if len(lines) != 1 or not reason.startswith("op "):
            return reason
        return f"{reason} in `{lines[0][1].strip()[:120]}` at {self._name}:{lines[0][0]}"

    def _is_of_code(self, name: str, message: str) -> bool:
        """Of a known shape, and every name in it stands in the script: `row[key]` names what the row holds."""
        found = _MESSAGES_OF_CODE[name].fullmatch(message) if name in _MESSAGES_OF_CODE else None
        return found is not None and all(
            self._mentions(part) for group in found.groups() if group for part in group.split(".")
        )

    def _mentions(self, identifier: str) -> bool:
        return re.search(rf"(?<![\w$]){re.escape(identifier)}(?![\w$])", self._script()) is not None

    def _script(self) -> str:
        if self._source is None:
            if self.config.inline is not None:
                self._source = self.config.inline
            else:
                assert self.config.file is not None
                try:
                    self._source = self.config.file.read_text("utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise ConfigError(
                        f"the script {self.config.file} cannot be read: {error}", where=f'processor "{self.config.id}"',
                        fix="Give a file in UTF-8 that exists on every machine that runs workers.",
                    ) from error  # fmt: skip
        return self._source

    def _start(self) -> Engine:
        limits = self.config.limits
        if self._engine is None:
            options = {
                "script": self._name, "deterministic": self.config.deterministic, "integers": self.config.integers,
                "log_lines": _LOG_LINES, "ops": [None, *(op.label for op in Op)],
            }  # fmt: skip
            self._engine = Engine(
                self._script(), options, cpu_ms=limits.cpu_ms, timeout_ms=limits.timeout_ms, mem_mb=limits.mem_mb
            )
        where = f'processor "{self.config.id}"'
        try:
            self._engine.start()
        except (ScriptFailed, LimitExceeded) as error:
            raise ConfigError(
                f"{self._name} does not load: {self._load_failure(str(error))}", where=where, fix="Mend the script."
            ) from error
        if not self._engine.found:
            self._engine.close()
            raise ConfigError(
                f"{self._name} defines neither processBatch nor process", where=where,
                fix="Define function processBatch(events) { return events; }, or function process(event).",
            )  # fmt: skip
        return self._engine

    def _load_failure(self, message: str) -> str:
        """V8's message with the line that it is about. A script that does not parse has no name yet."""
        place = rf"(?:<anonymous>|{re.escape(self._name)}):(\d+): (?:Uncaught )?(.+)"
        found = re.match(place, message)
        lines = self._script().splitlines()
        if found is None or not 0 < int(found[1]) <= len(lines):
            return message.strip()
        return f"{found[2]} in `{lines[int(found[1]) - 1].strip()[:120]}` at {self._name}:{found[1]}"

    def _log(self, lines: list[list[str]], unlogged: int) -> None:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._logged = minute, 0
        for level, text in lines:
            if self._logged >= _LOG_LINES_A_MINUTE:
                unlogged += 1
                continue
            self._logged += 1
            emit("processor.console", processor=self.config.id, severity=level, text=text)
        if unlogged and self._logged <= _LOG_LINES_A_MINUTE:
            self._logged += 1 if self._logged == _LOG_LINES_A_MINUTE else 0
            emit("processor.console_limited", processor=self.config.id, lines=unlogged)


component = JavascriptProcessor
