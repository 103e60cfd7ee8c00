"""What pages show that a command prints is what it prints: the same words and columns, numbers apart."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from tests.api import conftest
from tests.api.conftest import Serve, document
from tests.api.test_schedules import YEARLY, gate, wait_until
from tests.support.terminal import Terminal
from tidemill.cli import verify
from tidemill.cli.snapshot_view import SnapshotView
from tidemill.contracts import RowFault
from tidemill.service.snapshot.requests import SnapshotStatus
from tidemill.service.snapshot.status import TableStatus
from tidemill.service.verify.verdicts import KeyVerdict, RowRepair, TableVerdict

DOCS = Path(__file__).parents[2] / "docs"
serve, stand_ins, gate = conftest.serve, conftest.stand_ins, gate


def shown_after(page: str, command: str) -> list[str]:
    """The lines below a command, each with single spaces."""
    block = re.search(rf"^\$ {re.escape(command)}\n(.*?)^(?:```|\$ )", (DOCS / page).read_text(), re.M | re.S)
    assert block, f"{page} shows no `{command}`"
    return [" ".join(line.split()) for line in block[1].splitlines()]


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def fences(page: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def test_the_status_of_a_snapshot_looks_as_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    orders = TableStatus("public.orders", "copying", 400_000, 999_970)
    items = TableStatus("public.items", "pending", 0, 2_401_113)
    started = SnapshotStatus(
        1, "the pipeline's first start", "running", "2026-11-17T08:30:03+00:00", "", "", (orders, items)
    )
    SnapshotView().show(started, {"copy": 50_000})
    assert printed(capsys) == shown_after("snapshots.md", "tidemill snapshot status shop.yaml")


def test_a_snapshot_that_is_asked_for_is_answered_as_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [document] = [each for each in fences("snapshots.md") if each.startswith("metadata: {name: shop-copy}")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_DSN", "postgresql://nobody@127.0.0.1:1/none")
    Path("shop.yaml").write_text(document)
    command = "tidemill snapshot start shop.yaml --table public.orders --where \"region = 'north'\""
    answer = Terminal(capsys)(*shlex.split(command)[1:])
    [shown] = shown_after("snapshots.md", command)
    assert answer.out.strip() == shown.replace("snapshot 2", "snapshot 1")


def test_a_comparison_and_a_repair_look_as_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (
        KeyVerdict(("4711",), RowFault.MISSING), KeyVerdict(("4712",), RowFault.DIFFERENT, ("note",)),
        KeyVerdict(("4713",), RowFault.EXTRA),
    )  # fmt: skip
    verify._show([TableVerdict("public.orders", 5_000_000, wrong)], 20)
    assert printed(capsys) == shown_after("verify.md", "tidemill verify orders.yaml --sink copy")
    verify._show([TableVerdict("public.orders", 5_000_000, repair=RowRepair(2, 3, deleted=1))], 20)
    assert printed(capsys) == shown_after("verify.md", "tidemill verify orders.yaml --sink copy --repair")


def test_the_commands_of_the_page_of_schedules_print_what_it_shows(
    serve: Serve, gate: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, tidemill = serve(), Terminal(capsys)
    monkeypatch.setenv("TIDEMILL_SERVER", server.url)
    monkeypatch.setenv("TIDEMILL_TOKEN", server.admin)
    server.client().create(document("orders", schedule=YEARLY))
    commands, table = next(pair for pair in pairwise(fences("schedules.md")) if "pipelines runs" in pair[0])
    said = {}
    for line in re.findall(r"^tidemill (.*)$", commands, re.M):
        words, _, promised = line.partition("#")
        answer = tidemill(*words.split())
        assert answer.code == 0, answer.err
        said[words.strip()] = (answer.out, promised)
    status, promised = said["pipelines status orders"]
    assert [word for word in re.findall(r"[a-z_]{8,}", promised) if word not in status] == []
    wait_until(server, "running")
    assert said["pipelines runs orders"][0].splitlines()[0].split() == table.splitlines()[0].split()
    calls = re.findall(r"^(GET|POST) +(/pipelines\S*)", (DOCS / "schedules.md").read_text(), re.M)
    for method, path in calls:
        server.client().request(method, path.replace("{name}", "orders"))
    assert len(calls) == 2


def test_the_commands_of_the_page_of_the_server_print_what_it_shows(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, tidemill = serve(), Terminal(capsys)
    monkeypatch.setenv("TIDEMILL_SERVER", server.url)
    monkeypatch.setenv("TIDEMILL_TOKEN", server.admin)
    monkeypatch.chdir(tmp_path)
    server.client().create(document("orders", pause={"capture": True}))
    pages = fences("server.md")
    commands, line = next(pair for pair in pairwise(pages) if "pipelines pause" in pair[0])
    for each in re.findall(r"^tidemill (.*)$", commands, re.M):
        answer = tidemill(*shlex.split(each))
        assert answer.code == 0, answer.err
    fields = re.compile(r"(\w+)=|(paused)")
    assert fields.findall(answer.out) == fields.findall(line)
    table = next(each for each in pages if each.startswith("pipeline "))
    assert tidemill("pipelines", "ls").out.splitlines()[0].split() == table.splitlines()[0].split()
    remote = next(each for each in pages if "pipelines apply -f orders.yaml\n" in each)
    endless = re.compile("--watch| events")
    verbs = [each for each in re.findall(r"^tidemill (.*)$", remote, re.M) if not endless.search(each)]
    server.client().resume("orders")
    (tmp_path / "orders.yaml").write_bytes(orjson.dumps(document("orders")))
    for each in verbs:
        answer = tidemill(*shlex.split(each))
        assert answer.code == 0, answer.err
    assert len(verbs) >= 3
