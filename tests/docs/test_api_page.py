"""Every `curl` of docs/api.md, run in order against a server whose pipelines are stand-ins."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.api import conftest
from tests.api.conftest import Harness, Serve, document
from tidemill.api.client import ServerClient
from tidemill.api.proto import SERVICES, service
from tidemill.api.rpc.server import GrpcSettings, serve_grpc
from tidemill.config.confine import Confinement

GRPC_PAGE = Path(__file__).parents[2] / "docs" / "grpc.md"
PAGE = Path(__file__).parents[2] / "docs" / "api.md"
serve, stand_ins = conftest.serve, conftest.stand_ins


def test_every_call_of_the_page_works_as_it_stands(serve: Serve) -> None:
    server = serve(
        confinement=Confinement((Path("/srv/lake"),), frozenset({"SHOP_DSN"})),
        environment={"SHOP_DSN": "postgresql://cdc:hunter2@127.0.0.1:1/shop"},
    )
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(blocks) >= 6
    for block in blocks[1:]:
        script = block.replace("http://127.0.0.1:9000/metrics", server.metrics_url or "")
        setting = f'set -e\ncurl() {{ command curl -sS --fail-with-body "$@"; echo; }}\nAPI={server.url}\n'
        done = subprocess.run(
            ["sh", "-c", f'{setting}AUTH="Authorization: Bearer {server.admin}"\n{script}'],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr}"
        assert "hunter2" not in done.stdout
    called = set(re.findall(r"\$API/([\w-]+(?:/[\w-]+)*)", PAGE.read_text()))
    described = ServerClient(server.url, server.admin).request("GET", "/openapi.json")["paths"]
    shown = {re.sub(r"^pipelines/orders", "pipelines/{name}", each) for each in called}
    lacking = {each.lstrip("/") for each in described} - shown
    assert lacking == {
        "pipelines/{name}/dead-letters/{number}", "components/{family}/{component}",
        "pipelines/{name}/sensing/schemas/{table}", "pipelines/{name}/sensing/schemas/{table}/json-schema",
        "pipelines/{name}/ddl/{number}", "pipelines/{name}/ddl/{number}/approve",
        "pipelines/{name}/ddl/{number}/reject", "pipelines/{name}/ddl/{number}/apply",
    }  # fmt: skip


def test_the_python_of_the_page_works(serve: Serve) -> None:
    server: Harness = serve()
    server.client().create(document("orders"))
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    code = code.replace("http://127.0.0.1:8080", server.url) + "    break\n"
    exec(compile(code, str(PAGE), "exec"), {"token": server.admin, "print": lambda *_: None})
    assert server.client().request("GET", "/pipelines/orders")["spec"]["batch"]["max_events"] == 50_000


def test_the_python_of_the_grpc_page_works(serve: Serve) -> None:
    server: Harness = serve()
    server.client().create(document("orders"))
    (code,) = re.findall(r"^```python\n(.*?)^```", GRPC_PAGE.read_text(), re.M | re.S)
    said: list[str] = []
    with serve_grpc(server.control, server.tokens, GrpcSettings("127.0.0.1:0")) as port:
        code = code.replace("127.0.0.1:50051", f"127.0.0.1:{port}") + "channel.close()\n"
        exec(compile(code, str(GRPC_PAGE), "exec"), {"token": server.admin, "print": lambda *given: said.extend(given)})
    assert said[0] in ("INIT", "SETUP", "CDC")


def test_the_grpc_page_names_every_call() -> None:
    text = GRPC_PAGE.read_text()
    calls = {(name, method.name) for name in SERVICES for method in service(name).methods}
    assert {call for call in calls if f"`{call[0]}`" not in text or f"`{call[1]}`" not in text} == set()
