from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nats
import orjson

from tests.delivery.destination import Event, HoldsEvents
from tidemill.lab.servers.nats import Nats as Server


class Nats(HoldsEvents[Server]):
    """One exclusive stream for both tables. It is on disk, synced at every message, so that a killed server has all
    that it acknowledged."""

    def __init__(self, directory: Path) -> None:
        self.server = Server(sync_always=True)

    def config(self, port: int | None) -> dict[str, Any]:
        return {"servers": [f"nats://127.0.0.1:{port}"], "stream": "PROOF", "subject": "proof.${source.table}"}

    def events(self) -> Iterable[Event]:
        return asyncio.run(self._read())

    async def _read(self) -> list[Event]:
        connection = await nats.connect(self.server.uri)
        try:
            js = connection.jetstream()
            state = (await js.stream_info("PROOF")).state
            found = [await js.get_msg("PROOF", seq=seq) for seq in range(state.first_seq, state.last_seq + 1)]
            return [orjson.loads(message.data) for message in found]
        finally:
            await connection.close()


destination = Nats
