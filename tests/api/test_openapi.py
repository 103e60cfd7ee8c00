"""The description of the API is complete, and requests made from it find no defect of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.api.conftest import Harness, document, raw, use_stand_ins
from tests.support.seed import run_seed
from tidemill.api import problems
from tidemill.api.examples import UNKNOWN
from tidemill.api.guard import OPEN

ROUTES = """
GET /healthz, GET /readyz, GET /pipelines, POST /pipelines, GET /pipelines/{name}, PATCH /pipelines/{name},
DELETE /pipelines/{name}, POST /pipelines/{name}/pause, POST /pipelines/{name}/resume, POST /pipelines/{name}/stop,
GET /pipelines/{name}/sensing/schemas, GET /pipelines/{name}/sensing/schemas/{table},
GET /pipelines/{name}/sensing/schemas/{table}/json-schema, GET /pipelines/{name}/sensing/stats,
GET /pipelines/{name}/drift, GET /pipelines/{name}/drift/values,
GET /pipelines/{name}/schemas, PUT /pipelines/{name}, POST /pipelines/{name}/start, POST /pipelines/{name}/restart,
POST /pipelines/{name}/drain, GET /pipelines/{name}/status, GET /pipelines/{name}/transitions, POST /validate,
GET /pipelines/{name}/runs, POST /pipelines/{name}/runs,
POST /pipelines/{name}/doctor, GET /pipelines/{name}/checkpoints, POST /pipelines/{name}/checkpoints,
GET /pipelines/{name}/dead-letters, GET /pipelines/{name}/dead-letters/{number},
POST /pipelines/{name}/dead-letters/replay, POST /pipelines/{name}/dead-letters/purge, GET /pipelines/{name}/log,
GET /pipelines/{name}/log/stream,
GET /events, GET /pipelines/{name}/events, GET /version, GET /components, GET /components/{family}/{component},
GET /audit, GET /pipelines/{name}/ddl, GET /pipelines/{name}/ddl/plan, GET /pipelines/{name}/ddl/{number},
POST /pipelines/{name}/ddl/{number}/approve, POST /pipelines/{name}/ddl/{number}/reject,
POST /pipelines/{name}/ddl/{number}/apply,
GET /log-level, PUT /log-level, GET /status/stream, GET /pipelines/{name}/snapshots,
POST /pipelines/{name}/snapshots, POST /pipelines/{name}/snapshots/pause, POST /pipelines/{name}/snapshots/resume,
POST /pipelines/{name}/snapshots/cancel, POST /pipelines/{name}/verify, POST /pipelines/{name}/replay,
POST /pipelines/{name}/recover
"""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A server with a few pipelines, which random requests may change as they like."""
    directory: Path = tmp_path_factory.mktemp("fuzzed")
    with pytest.MonkeyPatch.context() as patched:
        use_stand_ins(patched)
        server = Harness(directory)
        client = server.client()
        client.create(document("orders", dlq={}))
        client.create(document("others"), start=False)
        yield server
        server.close()


@pytest.mark.slow
def test_no_request_that_the_description_allows_finds_a_defect(fuzzed: Harness) -> None:
    """A few requests for each operation, half of them about pipelines that are there."""
    import schemathesis  # it takes a second, and this test alone uses it

    described = schemathesis.openapi.from_dict(fuzzed.client().request("GET", "/openapi.json"))
    described.config.update(base_url=fuzzed.url)
    names = st.sampled_from(["orders", "others", None, None])
    answered: Counter[int] = Counter()
    for found in described.exclude(path_regex="(events|stream)$").get_all_operations():  # those never end
        operation = found.ok()  # type: ignore[union-attr]

        @settings(
            max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )  # fmt: skip
        @seed(run_seed())
        @given(case=operation.as_strategy(), name=names)
        def send(case: Any, name: str | None) -> None:
            if name is not None and "name" in (case.path_parameters or {}):
                case.path_parameters["name"] = name
            answer = case.call(headers={"Authorization": f"Bearer {fuzzed.admin}"}, timeout=60)
            answered[answer.status_code] += 1
            assert answer.status_code < 500, answer.text
            if answer.status_code >= 400:
                assert answer.headers["content-type"][0] == "application/problem+json"

        send()
    assert answered.keys() >= {200, 404, 422}


def test_the_description_has_every_route_with_its_role_errors_and_words(fuzzed: Harness) -> None:
    found = fuzzed.client().request("GET", "/openapi.json")
    assert found["openapi"].startswith("3.1")
    there = {f"{method.upper()} {path}" for path, methods in found["paths"].items() for method in methods}
    assert there == {each.strip() for each in ROUTES.split(",")}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["responses"].keys() & {"200", "201", "204"}
            if path not in ("/healthz", "/readyz"):
                assert operation["security"] == [{"token": []}]
                assert {"401", "403", "422"} <= operation["responses"].keys()


def test_the_routes_that_others_know_are_there_exactly(fuzzed: Harness) -> None:
    """Tools that were written for such a server find them under these names."""
    known = """GET /healthz, GET /readyz, GET /pipelines, POST /pipelines, GET /pipelines/{name},
        PATCH /pipelines/{name}, DELETE /pipelines/{name}, POST /pipelines/{name}/pause, POST /pipelines/{name}/resume,
        POST /pipelines/{name}/stop, GET /pipelines/{name}/schemas, GET /pipelines/{name}/sensing/schemas,
        GET /pipelines/{name}/sensing/schemas/{table}, GET /pipelines/{name}/sensing/schemas/{table}/json-schema,
        GET /pipelines/{name}/drift, GET /pipelines/{name}/sensing/stats"""
    paths = fuzzed.client().request("GET", "/openapi.json")["paths"]
    there = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert {" ".join(each.split()) for each in known.split(",")} <= there


def operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_every_parameter_body_and_answer_has_words_and_an_example_that_is_right(fuzzed: Harness) -> None:
    found = fuzzed.client().request("GET", "/openapi.json")
    parts = {"components": found["components"]}
    media: list[tuple[str, Any]] = []
    for method, path, operation in operations(found):
        where = f"{method} {path}"
        assert operation["description"], where
        for parameter in operation.get("parameters", []):
            described = found["components"]["parameters"]["IdempotencyKey"] if "$ref" in parameter else parameter
            assert described["description"], (where, described["name"])
            schema = described["schema"]
            shown = described.get("example", schema.get("default", (schema.get("examples") or [UNKNOWN])[0]))
            assert shown != UNKNOWN, (where, described["name"])
            jsonschema.Draft202012Validator(schema).validate(shown)
        own = [each for each in operation["responses"].values() if "$ref" not in each]
        assert own, where
        contents = [each.get("content", {}) for each in (operation.get("requestBody", {}), *own)]
        assert any(contents) or "204" in operation["responses"], where
        media += [(where, each) for content in contents for each in content.values()]
    for status, answer in found["components"]["responses"].items():
        assert list(answer["content"]) == ["application/problem+json"]
        media += [(status, each) for each in answer["content"].values()]
    assert len(media) > 80
    for where, each in media:
        assert "example" in each, where
        assert UNKNOWN not in orjson.dumps(each["example"]).decode(), (where, each["example"])
        jsonschema.Draft202012Validator({**each["schema"], **parts}).validate(each["example"])


def test_every_status_that_an_error_has_is_described(fuzzed: Harness) -> None:
    found = fuzzed.client().request("GET", "/openapi.json")
    for method, path, operation in operations(found):
        if path not in OPEN:
            lacking = {str(each) for each in problems._STATUS.values()} - operation["responses"].keys()
            assert lacking == set(), (method, path)


def send(server: Harness, description: dict[str, Any], method: str, path: str, **headers: str) -> Any:
    """With the body that the description shows, about the pipeline `orders`."""
    body = description["paths"][path][method.lower()].get("requestBody", {}).get("content", {})
    kind = next(iter(body), "application/json")
    content = orjson.dumps(body[kind]["example"]) if body else None
    there = path.format(name="orders", number=1, family="sinks", component="files", table="x")
    return raw(server, method, there, content, {"Content-Type": kind, **headers})


def test_every_change_of_a_pipeline_is_made_only_to_the_version_that_was_read(server: Harness) -> None:
    """`If-Match`, on every request that changes one; without a match nothing happens, and nothing is in the audit."""
    client = server.client()
    client.create(document("orders", dlq={}))
    described = client.request("GET", "/openapi.json")
    tried, before = [], client.request("GET", "/audit")
    for method, path, operation in operations(described):
        asks_only = method == "GET" or path.endswith(("/verify", "/doctor"))
        names = {each.get("name") for each in operation.get("parameters", [])}
        assert ("if-match" in names) == (not asks_only and "{name}" in path), (method, path)
        if "if-match" in names:
            tried.append(path)
            status, problem, _ = send(server, described, method, path, **{"If-Match": '"0badcafe", W/"1"'})
            assert (status, problem["code"]) == (412, "changed-meanwhile"), (method, path)
    assert len(tried) > 20
    assert client.request("GET", "/audit") == before
    version = raw(server, "GET", "/pipelines/orders")[2]["etag"]
    status, _, headers = raw(server, "POST", "/pipelines/orders/pause", None, {"If-Match": f'"old", {version}'})
    assert (status, headers["etag"]) == (200, version), "a pause changes no document"


def test_every_post_that_is_repeated_with_its_key_gets_its_first_answer(server: Harness) -> None:
    """And a refusal is not kept, so that it may be tried again."""
    client = server.client()
    client.create(document("orders", dlq={}))
    described = client.request("GET", "/openapi.json")
    answered: Counter[bool] = Counter()
    for method, path, operation in operations(described):
        references = {each.get("$ref") for each in operation.get("parameters", [])}
        assert ("#/components/parameters/IdempotencyKey" in references) == (method == "POST"), (method, path)
        if method == "POST":
            key = {"Idempotency-Key": f"key of {path}"}
            status, first, headers = send(server, described, method, path, **key)
            again, second, repeated = send(server, described, method, path, **key)
            assert "idempotent-replayed" not in headers
            assert ("idempotent-replayed" in repeated) == (status < 400), (path, first)
            answered[status < 400] += 1
            if status < 400:
                assert (again, second) == (status, first), path
    assert answered[True] >= 7, answered
