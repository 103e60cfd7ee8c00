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

from tests.api.conftest import Harness, document, use_stand_ins
from tests.support.seed import run_seed
from tidemill.api.examples import UNKNOWN

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


def test_every_body_and_every_answer_has_an_example_that_is_right(fuzzed: Harness) -> None:
    found = fuzzed.client().request("GET", "/openapi.json")
    parts = {"components": found["components"]}
    media: list[tuple[str, Any]] = []
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            answers = [operation["responses"][code] for code in ("200", "201") if code in operation["responses"]]
            contents = [each.get("content", {}) for each in (operation.get("requestBody", {}), *answers)]
            assert any(contents) or "204" in operation["responses"], (method, path)
            media += [(f"{method} {path}", each) for content in contents for each in content.values()]
    for status, answer in found["components"]["responses"].items():
        media += [(status, each) for each in answer["content"].values()]
    assert len(media) > 80
    for where, each in media:
        assert "example" in each, where
        assert UNKNOWN not in orjson.dumps(each["example"]).decode(), (where, each["example"])
        jsonschema.Draft202012Validator({**each["schema"], **parts}).validate(each["example"])
