"""What holds a script: time, CPU, memory, and a sandbox without doors. Each script here would hang the worker, eat the
machine or reach out of it if nothing held it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocks import make_block
from tidemill.errors import ConfigError, ProcessingError
from tidemill.processors.javascript import JavascriptConfig, JavascriptProcessor
from tidemill.telemetry import events

pytestmark = pytest.mark.slow

Make = Callable[..., JavascriptProcessor]
_LIMITS = {"cpu_ms": 60_000, "timeout_ms": 60_000, "mem_mb": 64}


@pytest.fixture
def script() -> Iterator[Make]:
    made: list[JavascriptProcessor] = []

    def make(body: str, **limits: int) -> JavascriptProcessor:
        # The script does its harm for the event with id 1 only.
        process = "function process(ev) { return ev.after.id === 1 ? harm(ev) ?? ev : ev; }"
        inline = f"const kept = [];\nfunction harm(ev) {{ {body} }}\n{process}"
        settings: dict[str, Any] = {"id": "js", "inline": inline, "limits": {**_LIMITS, **limits}}
        made.append(JavascriptProcessor(JavascriptConfig.model_validate(settings)))
        return made[-1]

    yield make
    for processor in made:
        processor.close()


def exceeds(processor: JavascriptProcessor, limit: str) -> None:
    """It is an error of the events of that call, and the next call finds a healthy engine."""
    block = make_block(3)
    with pytest.raises(ProcessingError) as caught:
        list(processor.process(iter([block])))
    assert sorted(caught.value.reasons) == block.offsets().tolist()
    assert f"exceeded limits.{limit}" in str(caught.value)
    healthy(processor)


def healthy(processor: JavascriptProcessor) -> None:
    fine = make_block(2, first_id=10)
    [made] = processor.process(iter([fine]))
    assert made.batch.equals(fine.batch)


@pytest.mark.parametrize(
    "body",
    [
        "while (true) {}",
        "/^(a+)+$/.test('a'.repeat(50) + 'b')",  # one expression that takes years
        "const next = () => Promise.resolve().then(next); next(); while (true) {}",
        "try { while (true) {} } finally { while (true) {} }",
        "(async () => { for (;;) await 0; })()",  # after the call, unless it is waited for
        "console.log({toJSON() { while (true) {} }})",
        "throw new Proxy({}, {get() { while (true) {} }})",  # while it is asked what it is
        "Error.prepareStackTrace = () => { while (true) {} }; null.x",
        # while the answer is read:
        "Object.defineProperty(ev, 'op', {get() { while (true) {} }})",
        "Object.defineProperty(ev.after, 'quantity', {get() { while (true) {} }})",
        "ev.after = new Proxy(ev.after, {get() { while (true) {} }})",
        "ev.after.more = {toJSON() { while (true) {} }}",
        "ev.route({get topic() { while (true) {} }})",
    ],
)
def test_a_script_that_never_ends_is_ended_by_timeout_ms(script: Make, body: str) -> None:
    exceeds(script(body, timeout_ms=300), "timeout_ms")


def test_a_script_that_computes_too_long_is_ended_by_cpu_ms(script: Make) -> None:
    exceeds(script("while (true) {}", cpu_ms=100), "cpu_ms")


@pytest.mark.parametrize(
    "body",
    [
        "while (true) kept.push({n: kept.length, s: 'x' + kept.length})",
        "while (true) kept.push(new Uint8Array(1 << 24).fill(1))",  # not on V8's heap
        "let s = 'ab'; while (true) { s += s; if (s.length > 1e6) kept.push(s.split('')); }",
        "while (true) kept.push(new Array(1 << 20).fill(0.5))",
        "const next = () => Promise.resolve(kept.push([])).then(next); next()",  # after the call
        "console.log('x'.repeat(1 << 28))",
        "return new Array(1e7).fill(ev)",
    ],
)
def test_a_script_that_needs_too_much_memory_is_ended_by_mem_mb(script: Make, body: str) -> None:
    exceeds(script(body), "mem_mb")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("(function deeper() { deeper(); })()", "RangeError"),
        ("let all = 'ab'; while (true) all += all;", "RangeError"),
        ("while (true) kept.push(new ArrayBuffer(1 << 26))", "RangeError"),
        ("ev.after.more = {}; ev.after.more.more = ev.after.more", 'column "more" was given an object that is no JSON'),
        ("let all = {}; for (let n = 0; n < 1e6; n++) all = {all}; ev.after.more = all", "an object that is no JSON"),
        ("ev.after['x'.repeat(1e6)] = 1", "longer than 255 characters"),
        ("ev.after['\\ud800'] = 1", "or no text"),
        ("for (let n = 0; n < 5000; n++) ev.after['c' + n] = n", "more than 1,000 columns"),
        ("ev.after.note = Symbol('x')", 'column "note" was given a symbol'),
        ("throw {get stack() { throw 1; }}", "a value that is no Error"),
        ("throw {stack: Symbol('x'), name: Symbol('y')}", "a value that is no Error"),
        ("return new Proxy(ev, {get: (of, name) => name === 'op' ? 'none' : of[name]})", "op must be insert"),
        ("ev.op = {toString() { while (true) {} }}", "op must be insert"),
        ("ev.after.note = new Date(NaN)", 'column "note" was given a Date that is no time'),
        ("const all = []; all.length = 2 ** 32 - 1; return all", "js.js: TypeError"),  # none of them is an event
    ],
)
def test_what_a_script_does_wrong_is_an_error_of_that_event_alone(script: Make, body: str, reason: str) -> None:
    processor, block = script(body), make_block(3)
    with pytest.raises(ProcessingError, match=re.escape(reason)) as caught:
        list(processor.process(iter([block])))
    assert list(caught.value.reasons) == [int(block.offsets()[1])]
    healthy(processor)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("Array.prototype.push = function () { return 0; }", "Array.prototype.push"),
        ("Array.prototype[Symbol.iterator] = function* () {}", "Array.prototype.Symbol(Symbol.iterator)"),
        ("Array.prototype.includes = () => false", "Array.prototype.includes"),
        ("Map.prototype.get = () => 1", "Map.prototype.get"),
        ("String.prototype.charCodeAt = () => 65; ev.after.note = 'x'", "String.prototype.charCodeAt"),
        ("delete Object.getPrototypeOf([].values()).next", "%ArrayIterator%.next"),
        ("Object.defineProperty(Map.prototype, 'size', {get: () => 0})", "Map.prototype.size"),
        (
            "const kept = new ArrayBuffer(64);"  # the answer would be written with bytes of another column
            " Object.defineProperty(Object.getPrototypeOf(Uint8Array.prototype), 'buffer', {get: () => kept});"
            " ev.after.note = 'x'",
            "%TypedArray%.prototype.buffer",
        ),
        ("Array.prototype.toJSON = () => 5", "toJSON of every object"),
        ("Object.prototype.toJSON = () => 5", "the engine gave no answer"),
    ],
)
def test_a_script_that_replaces_what_the_engine_works_with_is_told_so(script: Make, body: str, what: str) -> None:
    processor, block = script(body), make_block(3)
    with pytest.raises(ProcessingError, match=re.escape(what)) as caught:
        list(processor.process(iter([block])))
    assert sorted(caught.value.reasons) == block.offsets().tolist(), "none is believed"
    healthy(processor)


def test_a_script_that_replaces_it_at_its_top_level_does_not_load(script: Make) -> None:
    with pytest.raises(ConfigError, match=r"it replaces Array\.prototype\.push"):
        list(script("} Array.prototype.push = () => 0; {").process(iter([make_block(1)])))


@pytest.mark.parametrize(
    "body",
    [
        "JSON.stringify = JSON.parse = null",
        "for (const name of ['Array', 'Object', 'String', 'Math', 'Map', 'Promise']) globalThis[name] = null",
        "Object.freeze(Object.prototype); Object.freeze(Array.prototype)",
        "Object.defineProperty(Object.prototype, 'kind', {get: () => 7, set() { throw 1; }})",
        "String.prototype.shout = function () { return this.toUpperCase(); }",  # what libraries add stays
        "ev.after = new Proxy(ev.after, {})",
    ],
)
def test_what_a_script_does_to_its_own_world_changes_no_event(script: Make, body: str) -> None:
    processor, block = script(body), make_block(3)
    [made] = processor.process(iter([block]))
    assert made.batch.equals(block.batch)
    healthy(processor)


def test_a_script_finds_nothing_of_the_engine(script: Make) -> None:
    body = "const all = Object.getOwnPropertyNames(globalThis).filter((name) => name.includes('tidemill'));"
    processor = script(body + " if (all.length || typeof __tidemill !== 'undefined') throw new Error();")
    [made] = processor.process(iter([make_block(2)]))
    assert made.rows == 2


@pytest.mark.parametrize(
    "name",
    [
        "require", "module", "fetch", "XMLHttpRequest", "WebSocket", "Deno", "Bun", "setTimeout", "setInterval",
        "Worker",
        "SharedArrayBuffer", "Atomics", "WebAssembly", "importScripts", "load", "read", "print", "os", "std",
    ],
)  # fmt: skip
def test_the_sandbox_has_no_door_called(script: Make, name: str) -> None:
    processor = script(f"if (typeof {name} !== 'undefined') throw new TypeError('it is there');")
    [made] = processor.process(iter([make_block(2)]))
    assert made.rows == 2


@pytest.mark.parametrize(
    "body",
    [
        "import('fs').then(() => kept.push(1), () => {}); if (kept.length) throw new TypeError('imported');",
        "const p = (function () { return this; })()?.process; if (p?.env || p?.binding) throw new TypeError('found');",
        "const f = Function('return typeof process === \"function\" ? 0 : process')(); if (f) throw TypeError('x');",
    ],
)
def test_no_way_around_leads_out(script: Make, body: str) -> None:
    [made] = script(body).process(iter([make_block(2)]))
    assert made.rows == 2


def test_the_engine_has_nothing_of_the_worker(script: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "not-for-scripts")
    processor = script("")
    list(processor.process(iter([make_block(1)])))
    [pid] = _children()
    assert b"not-for-scripts" not in Path(f"/proc/{pid}/environ").read_bytes()
    links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert not [link for link in links if link.startswith("/") and link != "/dev/null" and "eventpoll" not in link]
    processor.close()
    assert _children() == []


def test_an_engine_in_an_endless_loop_ends_with_its_worker(tmp_path: Path) -> None:
    source = (
        "import os, signal, threading\n"
        "from tests.support.blocks import make_block\n"
        "from tidemill.processors.javascript import JavascriptConfig, JavascriptProcessor\n"
        "inline = 'function process(ev) { while (ev.after.id) {} return ev; }'\n"
        "config = {'id': 'x', 'limits': {'cpu_ms': 600000, 'timeout_ms': 600000}, 'inline': inline}\n"
        "p = JavascriptProcessor(JavascriptConfig.model_validate(config))\n"
        "list(p.process(iter([make_block(1)])))\n"
        "print(p._engine._process.pid, flush=True)\n"
        "threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()\n"
        "list(p.process(iter([make_block(2)])))\n"
    )
    worker = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert worker.returncode == -9, worker.stderr
    pid = int(worker.stdout)
    until = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def test_console_lines_are_events_of_the_processor_and_their_number_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.LOGGER, "propagate", True)
    caplog.set_level("INFO", "tidemill")
    inline = "function process(ev) { console.warn('seen', {id: ev.after.id}); return ev; }"
    processor = JavascriptProcessor(JavascriptConfig(id="talker", inline=inline))
    list(processor.process(iter([make_block(500)])))
    processor.close()
    found = [events.fields_of(record) for record in caplog.records if record.getMessage() == "processor.console"]
    assert found[0] == {"processor": "talker", "severity": "warn", "text": 'seen {"id":0}'}
    assert len(found) == 20
    [limited] = [events.fields_of(r) for r in caplog.records if r.getMessage() == "processor.console_limited"]
    assert limited["lines"] == 480


def _children() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (entry / "cmdline").read_bytes()
            except (OSError, IndexError):
                continue
            if parent == os.getpid() and b"sandbox.py" in command:
                found.append(int(entry.name))
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
