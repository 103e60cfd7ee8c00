"""What `deploy/` holds fits what there is: metrics, options, extras. Nothing is built or installed."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from typer.main import get_command

from tidemill.cli.serve import app
from tidemill.cli.worker import app as worker_app
from tidemill.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "tidemill"
OPTIONS = {option for parameter in get_command(app).params for option in parameter.opts}
METRIC = re.compile(r"\btidemill_[a-z_]+")


def known_metrics() -> set[str]:
    found = set()
    for entry in Metrics().catalog:
        found.add(entry.name)
        if entry.kind == "histogram":
            found |= {f"{entry.name}_{part}" for part in ("bucket", "sum", "count")}
    return found


def test_every_alert_asks_for_metrics_that_there_are_and_says_what_to_do() -> None:
    [group] = yaml.safe_load((DEPLOY / "prometheus" / "tidemill.rules.yaml").read_text())["groups"]
    page = (ROOT / "docs" / "deployment.md").read_text()
    for rule in group["rules"]:
        assert set(METRIC.findall(rule["expr"])) <= known_metrics(), rule["alert"]
        assert METRIC.findall(rule["expr"])
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert f"`{rule['alert']}`" in page


def test_every_panel_asks_for_metrics_that_there_are() -> None:
    board = orjson.loads((DEPLOY / "grafana" / "tidemill.json").read_bytes())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    assert len(asked) > 10
    for query in asked:
        assert METRIC.findall(query), query
        assert set(METRIC.findall(query)) <= known_metrics(), query
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_unit_and_the_image_start_a_server_with_options_it_has() -> None:
    unit = (DEPLOY / "systemd" / "tidemill.service").read_text()
    [start] = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    assert start.split()[1] == "serve"
    assert set(re.findall(r"--[a-z-]+", start)) <= OPTIONS
    image = (DEPLOY / "container" / "Containerfile").read_text()
    [command] = re.findall(r"^CMD (\[.*\])$", image, re.M)
    assert {each for each in orjson.loads(command) if each.startswith("--")} <= OPTIONS
    [exposed] = re.findall(r"^EXPOSE (.*)$", image, re.M)
    assert exposed.split() == [each.rpartition(":")[2] for each in orjson.loads(command) if each.startswith("0.0.0.0:")]
    assert re.search(r"^USER [1-9]\d*$", image, re.M), "not root"
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", image, re.M):
        assert all((ROOT / each).exists() for each in source.split()), source


def test_the_image_has_what_a_container_should() -> None:
    """It takes minutes to build; what it says is looked at."""
    image = (DEPLOY / "container" / "Containerfile").read_text()
    stages = re.split(r"^FROM ", image, flags=re.M)[1:]
    last, kernels = stages[-1], next(each for each in stages if "AS kernels" in each)
    assert last.startswith("base\n"), "with what the stage `base` has, and nothing that was only needed to build"
    assert re.search(r"^USER 10001$", last, re.M)
    assert re.search(r"^USER 10001$", kernels, re.M), "who compiles is who runs: the cache belongs to it"
    [volumes] = re.findall(r"^VOLUME (\[.*\])$", last, re.M)
    [command] = re.findall(r"^CMD (\[.*\])$", last, re.M)
    given = orjson.loads(command)
    assert orjson.loads(volumes) == [given[given.index("--state-dir") + 1]]
    [exposed] = re.findall(r"^EXPOSE (.*)$", last, re.M)
    assert {"8080", "9000"} <= set(exposed.split())
    [cache] = re.findall(r"NUMBA_CACHE_DIR=(\S+)", image)
    assert f"COPY --from=kernels --chown=10001:10001 {cache} {cache}" in last, "kernels are compiled when it is built"
    assert cache not in orjson.loads(volumes), "a volume would hide them"
    for line in re.findall(r"tidemill (demo[^&\n]*)", kernels):
        name, *options = line.split()
        assert {each for each in options if each.startswith("--")} <= _options(f"{name}_command"), line


def test_the_image_has_what_its_extras_need_as_the_lock_has_it() -> None:
    """Its lock is complete and has a hash for everything, or pip refuses it."""
    image, project = (
        (DEPLOY / "container" / "Containerfile").read_text(),
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"],
    )
    own, whole = read_lock(DEPLOY / "container" / "requirements.lock"), read_lock(ROOT / "requirements.lock")
    assert {name: whole.get(name) for name in own} == own
    assert all(hashes for _, hashes in own.values())
    extras = re.findall(r"--extra ([a-z0-9]+)", (ROOT / "scripts" / "lock.sh").read_text())
    assert ", ".join(extras) in " ".join(re.findall(r"^# (.*)$", image, re.M)), "the comment says which"
    optional = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for extra in extras for each in optional[extra])]
    names = {re.split(r"[^A-Za-z0-9._-]", each)[0].lower() for each in asked} - {"tidemill"}
    assert names <= set(own)
    assert "pytest" not in own
    for line in re.findall(r"pip install .* -r \S+", image):
        assert "--require-hashes --no-deps" in line
    [demo] = re.findall(r"wanted = /\^\(([a-z|-]+)\)==/", image)
    assert set(demo.split("|")) <= set(whole)


def read_lock(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """By package: its version, with what that is for, and its hashes."""
    found = re.findall(r"^([a-z0-9._-]+)==(.*?) \\\n((?: +--hash=\S+(?: \\)?\n?)+)", path.read_text(), re.M)
    return {name: (version, frozenset(re.findall(r"sha256:\w+", hashes))) for name, version, hashes in found}


def _options(module: str) -> set[str]:
    command = get_command(importlib.import_module(f"tidemill.lab.{module}").app)
    return {option for parameter in command.params for option in parameter.opts}


def test_the_context_of_the_image_is_what_it_copies_and_nothing_else() -> None:
    image = (DEPLOY / "container" / "Containerfile").read_text()
    copied = {each for line in re.findall(r"^COPY (?!--from)(.*) \S+$", image, re.M) for each in line.split()}
    ignored, *rest = [each for each in (ROOT / ".dockerignore").read_text().splitlines() if not each.startswith("#")]
    assert (ignored, {each[1:] for each in rest if each.startswith("!")}) == ("*", copied)


@pytest.mark.slow
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    unit = (DEPLOY / "systemd" / "tidemill.service").read_text()
    (tmp_path / "tidemill.service").write_text(unit.replace("/opt/tidemill/bin/tidemill", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / "tidemill.service")], capture_output=True, text=True, check=False
    )
    assert [each for each in done.stderr.splitlines() if "tidemill.service" in each] == [], "what it says of this unit"


@pytest.mark.slow
def test_the_chart_renders_and_starts_servers_with_options_they_have() -> None:
    made = render()
    assert sorted(each["kind"] for each in made) == ["ConfigMap", "Deployment", "PersistentVolumeClaim", "Service"]
    [deployment] = [each for each in made if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["args"][0] == "serve"
    assert {each.partition("=")[0] for each in container["args"][1:]} <= OPTIONS
    assert "--workers" not in container["args"]
    assert pod["securityContext"]["runAsNonRoot"]
    listening = {int(each.rpartition(":")[2]) for each in container["args"] if "=0.0.0.0:" in each}
    assert {each["containerPort"] for each in container["ports"]} == listening == {8080, 9000, 50051}
    [service] = [each for each in made if each["kind"] == "Service"]
    assert {each["targetPort"] for each in service["spec"]["ports"]} == {each["name"] for each in container["ports"]}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    [volume] = [each for each in made if each["kind"] == "PersistentVolumeClaim"]
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.slow
def test_the_chart_runs_pipelines_in_pods_of_their_own_with_tls_and_without_grpc(tmp_path: Path) -> None:
    values = {
        "workers": ["orders", "Shop_Users.v2"], "tlsSecret": "certificates", "tlsClientCa": True, "grpcPort": 0,
        "allowEnv": ["SHOP_DSN"], "roots": ["/srv/lake"], "allowCode": True, "metricsAuth": "token",
        "pipelines": {"orders.yaml": "metadata: {name: orders}\nspec:\n  sinks: []\n"},
        "storage": {"className": "nfs", "accessMode": "ReadWriteMany", "size": "1Gi"},
    }  # fmt: skip
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    made = render("--values", str(tmp_path / "values.yaml"))
    deployments = {each["metadata"]["name"]: each for each in made if each["kind"] == "Deployment"}
    assert sorted(deployments) == ["cdc", "cdc-worker-orders", "cdc-worker-shop-users-v2"]
    [server] = deployments["cdc"]["spec"]["template"]["spec"]["containers"]
    arguments = {each.partition("=")[0] for each in server["args"]}
    assert {"--workers", "--tls-cert", "--tls-key", "--tls-client-ca"} <= arguments
    assert "--grpc" not in arguments
    assert server["livenessProbe"]["tcpSocket"] == server["startupProbe"]["tcpSocket"] == {"port": "api"}
    assert {"--watch-files", "--allow-env=SHOP_DSN", "--root=/srv/lake", "--allow-code"} <= set(server["args"])
    worker = deployments["cdc-worker-shop-users-v2"]["spec"]["template"]
    [container] = worker["spec"]["containers"]
    assert "--pipeline=Shop_Users.v2" in container["args"]
    shared = {"--tls-cert", "--tls-key", "--tls-client-ca", "--metrics-auth", "--allow-env", "--root", "--allow-code"}
    assert shared <= {each.partition("=")[0] for each in container["args"]}, "as the server"
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in worker["spec"]["volumes"]}
    worker_options = {option for parameter in get_command(worker_app).params for option in parameter.opts}
    assert {each.partition("=")[0] for each in container["args"][1:]} <= worker_options
    labels = deployments["cdc-worker-shop-users-v2"]["spec"]["selector"]["matchLabels"]
    assert labels.items() <= worker["metadata"]["labels"].items()
    assert labels != deployments["cdc"]["spec"]["selector"]["matchLabels"]
    [config] = [each for each in made if each["kind"] == "ConfigMap"]
    assert yaml.safe_load(config["data"]["orders.yaml"])["metadata"] == {"name": "orders"}
    [volume] = [each for each in made if each["kind"] == "PersistentVolumeClaim"]
    assert volume["spec"]["storageClassName"] == "nfs"


def test_what_the_chart_gives_to_servers_and_workers_are_options_they_have() -> None:
    """Also where there is no helm: the templates as they are."""
    for name, app_of in (("deployment", app), ("workers", worker_app)):
        known = {option for parameter in get_command(app_of).params for option in parameter.opts}
        text = (CHART / "templates" / f"{name}.yaml").read_text()
        given = set(re.findall(r"^\s+- (--[a-z-]+)", text, re.M))
        assert len(given) > 5
        assert given <= known
    used = {
        each for file in (CHART / "templates").iterdir() for each in re.findall(r"\.Values\.(\w+)", file.read_text())
    }
    assert used == set(yaml.safe_load((CHART / "values.yaml").read_text())), "every value is used, and none is unknown"


def render(*options: str) -> list[Any]:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed: go install helm.sh/helm/v3/cmd/helm@latest puts it into $GOBIN")
    done = subprocess.run(
        [helm, "template", "cdc", str(CHART), *options], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]
