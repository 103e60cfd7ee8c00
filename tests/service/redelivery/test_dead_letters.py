"""Dead letters as an operator meets them: a webhook that refuses one event, the others, the letter, its replay."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import orjson
import psycopg
import pytest

from tests.cli.test_run import PATIENCE, running, until
from tests.support.terminal import Terminal
from tidemill.lab.servers.postgres import Postgres

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: postgres, config: {{id: test, dsn: "{dsn}", tables: [public.t]}}}}
  sinks: [{{type: http, config: {{id: hook, url: "http://127.0.0.1:{port}/hook"}}}}]
  dlq:
  state_dir: {state}
"""


class Receiver:
    """A webhook of ours: notes the ids it is sent, and answers 422 to those it does not like."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.disliked: set[int] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
                number = body["after"]["id"]
                if number not in receiver.disliked:
                    receiver.taken.append(number)
                self.send_response(422 if number in receiver.disliked else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_an_event_that_a_webhook_refuses_waits_for_its_replay_while_all_others_arrive(
    postgres18: Postgres, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    tidemill = Terminal(capsys)
    receiver.disliked = {13}
    path = tmp_path / "orders.yaml"
    with postgres18.database("letters") as dsn, psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        path.write_text(DOCUMENT.format(dsn=dsn, port=receiver.server.server_port, state=tmp_path / "state"))
        with running(path) as process:
            until(process, lambda: db.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone())
            db.execute("INSERT INTO t SELECT generate_series(1, 20)")
            db.execute("INSERT INTO t SELECT generate_series(21, 25)")
            until(process, lambda: len(set(receiver.taken)) == 24)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error.decode()[-2000:]
    (hook,) = orjson.loads(out.splitlines()[-1])["sinks"]
    assert (hook["state"], hook["dead_letters"], hook["lag_events"]) == ("ok", 1, 0)
    (dead_letter,) = tidemill("dlq", "ls", path, "--json").json["dead_letters"]
    assert (dead_letter["sink"], dead_letter["table"]) == ("hook", "public.t")
    assert "422" in dead_letter["reason"]
    assert tidemill("dlq", "show", path, dead_letter["id"]).json["event"]["after"] == {"id": 13}
    assert tidemill("dlq", "replay", path, "--yes").code == 1
    assert tidemill("dlq", "ls", path, "--json").json["dead_letters"][0]["attempts"] == 2
    receiver.disliked = set()
    assert tidemill("dlq", "replay", path, "--yes").code == 0
    assert receiver.taken[-1] == 13
    assert tidemill("dlq", "ls", path, "--json").json["dead_letters"] == []
