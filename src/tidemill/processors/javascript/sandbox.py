"""The process that V8 runs in: `engine` starts it as a script, with nothing of the worker's but two pipes.

It imports nothing of Tidemill and nothing that can reach a file or the network on behalf of the script: V8 has no such
thing, and this process hands none in. The worker kills it where a limit of time is exceeded; memory is bounded by V8's
own limit and, for what V8 does not count, by the operating system's (RLIMIT_DATA).

A message is a length, a JSON head and its bytes. In: {"do": "prepare" | "load" | "run", ...}. Out: {"ok": ...} or
{"error": kind}.

What prelude.js returns is kept in a constant of V8's global scope, under a name that no script can guess: unlike a
property of `globalThis`, it is not found by looking.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import secrets
import struct
import sys
import threading
from typing import Any, BinaryIO

_HEAD = struct.Struct("<QQQ")  # bytes of the head, of the arena, of the text
_SLACK_MB = 96  # the interpreter's own growth, thread stacks, V8's code and its young generation


def main() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    from py_mini_racer import MiniRacer

    engine = _Sandbox(MiniRacer(), os.fdopen(os.dup(1), "wb", buffering=0))
    os.dup2(2, 1)  # nobody else writes into the answers
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_serve, args=(engine, requests), daemon=True).start()
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    try:
        while (message := _read(source)) is not None:
            requests.put(message)
    except MemoryError:
        os._exit(70)
    os._exit(0)  # the worker is gone; a script that never ends must not outlive it


def _serve(engine: _Sandbox, requests: queue.SimpleQueue[Any]) -> None:
    while True:
        engine.answer(*requests.get())


class _Sandbox:
    def __init__(self, racer: Any, answers: BinaryIO) -> None:
        self._racer = racer
        self._api = f"tidemill_{secrets.token_hex(16)}"
        self._answers = answers
        self._inbox: Any = None
        self._arena = memoryview(b"")
        self._out = memoryview(b"")

    def answer(self, head: dict[str, Any], arena: memoryview, text: memoryview) -> None:
        from py_mini_racer import JSEvalException, JSOOMException

        try:
            answer, data = self._obey(head, arena, text)
        except JSOOMException:
            answer, data = {"error": "memory"}, memoryview(b"")
        except JSEvalException as error:
            answer, data = {"error": "script", "message": str(error)}, memoryview(b"")
        except MemoryError:
            os._exit(70)
        except Exception as error:  # noqa: BLE001  the script left V8 in a state that gives no answer
            answer, data = {"error": "broken", "message": type(error).__name__}, memoryview(b"")
        packed = json.dumps(answer).encode()
        self._answers.write(_HEAD.pack(len(packed), len(data), 0))
        for part in (packed, data):
            left = memoryview(part)
            while left:
                left = left[self._answers.write(left) :]

    def _obey(self, head: dict[str, Any], arena: memoryview, text: memoryview) -> tuple[dict[str, Any], memoryview]:
        if head["do"] == "run":
            return self._run(head, arena, text)
        return (self._load(head) if head["do"] == "load" else self._prepare(head)), memoryview(b"")

    def _prepare(self, head: dict[str, Any]) -> dict[str, Any]:
        """All that comes before the script: what takes time here is the machine's doing, not the script's."""
        self._racer.eval(f"const {self._api} = {head['prelude']}\n//# sourceURL=tidemill.js")
        self._racer.eval(f"{self._api}.setUp({json.dumps(head['options'])})")
        self._inbox = self._racer.eval(f"{self._api}.inbox")
        _bound_memory(head["mem_mb"])
        self._racer.set_hard_memory_limit(head["mem_mb"] << 20)
        return {"ok": {}}

    def _load(self, head: dict[str, Any]) -> dict[str, Any]:
        self._racer.eval(f"{head['script']}\n//# sourceURL={head['name']}")
        found = self._racer.eval(
            f"{self._api}.use(typeof processBatch === 'undefined' ? undefined : processBatch,"
            " typeof process === 'undefined' ? undefined : process)"
        )
        return {"ok": {**json.loads(found), "v8": self._racer.v8_version}}

    def _run(self, head: dict[str, Any], arena: memoryview, text: memoryview) -> tuple[dict[str, Any], memoryview]:
        if len(arena) > len(self._arena):
            self._arena = self._racer.eval(f"{self._api}.room({len(arena) * 5 // 4})")
        self._arena[: len(arena)] = arena
        self._inbox["text"] = str(text, "utf-8")
        answer = json.loads(self._racer.eval(f"{self._api}.run({head['run']})"))
        self._racer.eval("0")  # after all promises of the script: a loop of them is this call's, not the next one's
        if self._racer.was_hard_memory_limit_reached():
            return {"error": "memory"}, memoryview(b"")
        if answer.pop("grown"):
            self._out = self._racer.eval(f"{self._api}.out")
        if head["measure"]:
            answer["heap_bytes"] = self._racer.heap_stats()["used_heap_size"]
        return {"ok": answer}, self._out[: answer.get("bytes", 0)]


def _bound_memory(mem_mb: int) -> None:
    with open("/proc/self/status", encoding="ascii") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:")) << 10
    limit = used + ((mem_mb + _SLACK_MB) << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(source: BinaryIO) -> tuple[dict[str, Any], memoryview, memoryview] | None:
    prefix = _exactly(source, _HEAD.size)
    if prefix is None:
        return None
    sizes = _HEAD.unpack(prefix)
    whole = _exactly(source, sum(sizes))
    if whole is None:
        return None
    head, arena = json.loads(bytes(whole[: sizes[0]])), whole[sizes[0] : sizes[0] + sizes[1]]
    return head, arena, whole[sizes[0] + sizes[1] :]


def _exactly(source: Any, size: int) -> memoryview | None:
    buffer = memoryview(bytearray(size))
    at = 0
    while at < size:
        count = source.readinto(buffer[at:])
        if not count:
            return None
        at += count
    return buffer


if __name__ == "__main__":
    main()
