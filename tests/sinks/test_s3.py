"""The s3 sink against SeaweedFS: what the manifests name holds every event once, whatever was given up on the way."""

from __future__ import annotations

import dataclasses
import gzip
import http.server
import io
import itertools
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import orjson
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tests.support.blocks import make_block, make_table
from tests.support.deliveries import make_deliveries, make_events
from tests.support.seed import run_seed
from tidemill.config.secrets import mask, reveal
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Poisoned, Refused, is_retryable
from tidemill.lab.servers.process import free_port
from tidemill.lab.servers.seaweedfs import SeaweedFS
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks import s3
from tidemill.sinks.s3 import S3Config, S3Sink, write
from tidemill.sinks.s3.resume import Manifests
from tidemill.sinks.s3.write import Upload

DOCS = Path(__file__).parents[2] / "docs" / "sinks" / "s3.md"
_names = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    with SeaweedFS() as made:
        made.bucket("lake")
        yield made


@pytest.fixture(scope="module")
def store(server: SeaweedFS) -> Any:
    return server.store("lake")


@pytest.fixture
def prefix() -> str:
    return f"run-{next(_names)}"


@pytest.fixture
def sinks(server: SeaweedFS, prefix: str) -> Any:
    def make(**options: Any) -> S3Sink:
        given = {
            "bucket": "lake", "prefix": prefix, "endpoint": server.endpoint,
            "access_key_id": server.access_key, "secret_access_key": server.secret_key,
        }  # fmt: skip
        return S3Sink(S3Config(id="s", **{**given, **options}))

    return make


def batch(blocks: Any, start: int, end: int) -> Delivery:
    (delivery,) = make_deliveries(blocks, start, end, lanes=1)
    return delivery


def delivery_of(*blocks: Block, start: int = 0) -> Delivery:
    end = max((int(b.offsets()[-1]) for b in blocks), default=start - 1) + 1
    return Delivery("shop", "orders", start, end, 0, 1, lambda: iter(blocks))


def visible(store: Any, prefix: str) -> list[str]:
    """As the docs tell readers to find them."""
    scope: dict[str, Any] = {}
    exec(re.search(r"```python\n(.*?)```", DOCS.read_text(), re.S)[1], scope)  # type: ignore[index]
    return list(scope["objects"](store, prefix))


def content(store: Any, path: str) -> bytes:
    return bytes(obstore.get(store, path).bytes())


def offsets(store: Any, prefix: str) -> list[int]:
    lines = [line for path in visible(store, prefix) for line in content(store, path).splitlines()]
    return sorted(orjson.loads(line)["offset"] for line in lines)


def data(store: Any, prefix: str) -> list[str]:
    """Every object under the prefix, whether it counts or not."""
    return sorted(m["path"] for m in obstore.list(store, f"{prefix}/").collect() if "/_tidemill/" not in m["path"])


class TestObjects:
    def test_are_named_by_offsets_in_folders_that_the_template_names(self, sinks: Any, store: Any, prefix: str) -> None:
        sink = sinks(path="${source.schema}/${source.table}/dt=${commit.date}/paid=${after.paid}")
        receipt = sink.write(batch(make_events(40), 0, 40))
        assert (receipt.events, receipt.skipped, receipt.ok) == (40, 0, True)
        assert data(store, prefix) == [
            f"{prefix}/public/{table}/dt=2026-01-01/paid={paid}/{0:020}-{40:020}-00000.jsonl"
            for table in ("customers", "orders") for paid in ("false", "true")
        ]  # fmt: skip
        assert visible(store, prefix) == data(store, prefix)
        assert receipt.bytes == sum(len(content(store, path)) for path in data(store, prefix))
        assert offsets(store, prefix) == list(range(40))

    @pytest.mark.parametrize("format", ["json", "avro", "protobuf", "arrow", "parquet"])
    def test_come_in_every_format(self, sinks: Any, store: Any, prefix: str, format: str) -> None:
        blocks = [make_block(10, offsets=range(10)), make_block(5, table=make_table(version=2), offsets=range(10, 15))]
        assert sinks(format=format).write(delivery_of(*blocks)).events == 15
        if format == "parquet":
            tables = [pq.read_table(io.BytesIO(content(store, path))) for path in visible(store, prefix)]
            assert [t.num_rows for t in tables] == [10, 5]
            assert [re.search(r"orders-v(\d)", path)[1] for path in visible(store, prefix)] == ["1", "2"]  # type: ignore[index]

    def test_may_be_compressed(self, sinks: Any, store: Any, prefix: str) -> None:
        sinks(compression="gzip").write(delivery_of(make_block(10)))
        (path,) = visible(store, prefix)
        assert path.endswith(".jsonl.gz")
        assert len(gzip.decompress(content(store, path)).splitlines()) == 10

    def test_roll_by_rows_bytes_and_commit_time(self, sinks: Any, store: Any, prefix: str) -> None:
        sinks(max_rows=15, prefix=f"{prefix}/rows").write(delivery_of(make_block(40)))
        counts = [len(content(store, path).splitlines()) for path in visible(store, f"{prefix}/rows")]
        assert counts == [15, 15, 10]
        blocks = [make_block(10, offsets=range(i * 10, i * 10 + 10)) for i in range(4)]
        sinks(max_bytes=8000, prefix=f"{prefix}/bytes").write(delivery_of(*blocks))
        assert len(visible(store, f"{prefix}/bytes")) == 2
        later = [make_block(5, offsets=range(i * 5, i * 5 + 5), tx_id=700 + i * 30_000_000) for i in range(4)]
        sinks(max_seconds=60, prefix=f"{prefix}/time").write(delivery_of(*later))
        assert len(visible(store, f"{prefix}/time")) == 2

    def test_that_are_large_go_up_in_parts(
        self, sinks: Any, store: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(write, "_PART", 5 << 20)
        delivery = delivery_of(make_block(16_000), make_block(16_000, offsets=range(16_000, 32_000)))
        for _ in range(2):
            sinks().write(delivery)
        (path,) = visible(store, prefix)
        assert obstore.head(store, path)["e_tag"].endswith('-4"')
        assert offsets(store, prefix) == list(range(32_000))

    def test_that_fill_the_memory_are_finished_early_and_counted_all_the_same(
        self, sinks: Any, store: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3, "_HELD", 20_000)
        blocks = [make_block(20, offsets=range(i * 20, i * 20 + 20)) for i in range(10)]
        sinks().write(delivery_of(*blocks))
        assert len(visible(store, prefix)) > 2
        assert offsets(store, prefix) == list(range(200))

    def test_have_values_in_their_names_only_as_one_folder(self, sinks: Any, store: Any, prefix: str) -> None:
        assert S3Config.escape("a/b%c") == "a%2Fb%25c"
        assert S3Config.escape("../x") == "%2E.%2Fx"
        assert S3Config.escape("_x") == "%5Fx"
        table = dataclasses.replace(make_table("odd/name"), schema="")
        sinks().write(delivery_of(make_block(1, table=table)))
        assert data(store, prefix) == [f"{prefix}/odd%2Fname/{0:020}-{1:020}-00000.jsonl"]

    @pytest.mark.parametrize(
        "path", ["", "/", "${after.note:-}", "/${after.note:-}/", "${after.note:-}//${after.note:-}"]
    )
    def test_stand_at_the_prefix_where_there_is_no_folder(self, sinks: Any, store: Any, prefix: str, path: str) -> None:
        block = make_block(3)
        assert block.batch.column("after")[0].as_py()["note"] is None
        one = Block(block.table, block.batch.slice(0, 1))
        assert sinks(path=path).write(delivery_of(one)).events == 1
        assert data(store, prefix) == [f"{prefix}/{0:020}-{1:020}-00000.jsonl"]
        assert offsets(store, prefix) == [0]
        assert sinks(path=path).write(delivery_of(one)).skipped == 1

    def test_of_an_empty_value_stand_one_folder_higher(self, sinks: Any, store: Any, prefix: str) -> None:
        sinks(path="a/${after.note:-}/b").write(delivery_of(make_block(1)))
        assert data(store, prefix) == [f"{prefix}/a/b/{0:020}-{1:020}-00000.jsonl"]

    def test_of_an_empty_delivery_are_none(self, sinks: Any, store: Any, prefix: str) -> None:
        assert sinks().write(delivery_of()).events == 0
        assert visible(store, prefix) == []


class Killed(BaseException):
    pass


class TestReplay:
    @pytest.mark.parametrize("options", [{}, {"format": "parquet"}, {"compression": "zstd"}])
    def test_of_a_whole_batch_changes_nothing(
        self, sinks: Any, store: Any, prefix: str, options: dict[str, Any]
    ) -> None:
        first = sinks(**options)
        first.write(batch(make_events(60), 0, 60))
        before = {m["path"]: m["e_tag"] for m in obstore.list(store, f"{prefix}/").collect()}
        for sink in (first, sinks(**options)):
            receipt = sink.write(batch(make_events(60), 0, 60))
            assert (receipt.events, receipt.skipped) == (0, 60)
        after = {m["path"]: m["e_tag"] for m in obstore.list(store, f"{prefix}/").collect()}
        assert {path: tag for path, tag in after.items() if path in visible(store, prefix)} == {
            path: tag for path, tag in before.items() if path in visible(store, prefix)
        }
        assert after.keys() == before.keys()

    @pytest.mark.parametrize("end", [40, 60, 100])
    def test_of_a_batch_without_its_manifest_leaves_no_object_of_the_first_attempt(
        self, sinks: Any, store: Any, prefix: str, end: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocks = make_events(100)
        sinks().write(batch(blocks, 0, 20))
        with monkeypatch.context() as patch:
            patch.setattr(Manifests, "publish", _killed)
            with pytest.raises(Killed):
                sinks().write(batch(blocks, 20, 60))
        assert offsets(store, prefix) == list(range(20))
        sinks().write(batch(blocks, 20, end))
        sinks().write(batch(blocks, end, 100))
        assert offsets(store, prefix) == list(range(100))
        assert data(store, prefix) == sorted(visible(store, prefix))

    @pytest.mark.parametrize("end", [40, 60, 100])
    def test_of_a_batch_whose_manifest_is_there_goes_on_behind_it(
        self, sinks: Any, store: Any, prefix: str, end: int
    ) -> None:
        """Killed after the manifest and before the checkpoint, then planned anew."""
        blocks = make_events(100)
        sinks().write(batch(blocks, 0, 60))
        sinks().write(batch(blocks, 0, end))
        sinks().write(batch(blocks, end, 100))
        counted = Counter(offsets(store, prefix))
        assert sorted(counted) == list(range(100))
        assert set(counted.values()) == {1}

    def test_in_smaller_batches_is_recognised_from_one_to_the_next(self, sinks: Any, store: Any, prefix: str) -> None:
        blocks = make_events(100)
        sinks().write(batch(blocks, 0, 60))
        for start, end in [(0, 10), (10, 30), (10, 20), (20, 50), (20, 40), (40, 100), (40, 80), (80, 100)]:
            sinks().write(batch(blocks, start, end))
        assert offsets(store, prefix) == list(range(100))
        with pytest.raises(Refused, match="do not show"):  # from the middle, nothing tells that these are the same
            sinks().write(batch(blocks, 30, 40))

    def test_killed_at_any_upload_and_planned_anew_every_event_is_there_once(
        self, sinks: Any, store: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seed = run_seed()
        chance, blocks, start = random.Random(seed), make_events(100), 0
        put, fuse = Upload.put, [0]

        def fragile(upload: Upload) -> None:
            fuse[0] -= 1
            if fuse[0] < 0:
                raise Killed
            put(upload)

        monkeypatch.setattr(Upload, "put", fragile)
        while start < 100:
            end = min(100, start + chance.choice([10, 20, 50]))
            fuse[0] = chance.choice([0, 1, 2, 3, 99, 99])
            try:
                sinks(max_rows=7).write(batch(blocks, start, end))
            except Killed:
                continue
            if chance.random() < 0.7:
                start = end
        assert offsets(store, prefix) == list(range(100)), f"seed {seed}"
        assert data(store, prefix) == sorted(visible(store, prefix)), f"seed {seed}"

    def test_finds_an_object_of_other_bytes_and_replaces_it(self, sinks: Any, store: Any, prefix: str) -> None:
        name = f"{prefix}/public/orders/{0:020}-{5:020}-00000.jsonl"
        obstore.put(store, name, b"left over")
        sinks().write(delivery_of(make_block(5)))
        assert visible(store, prefix) == [name]
        assert offsets(store, prefix) == list(range(5))

    def test_by_a_second_worker_at_the_same_time_is_published_once(self, sinks: Any, store: Any, prefix: str) -> None:
        blocks = make_events(60)
        slow, other = sinks(), sinks()

        def overtaken() -> Iterator[Block]:
            other.write(batch(blocks, 0, 20))  # after the slow one looked for manifests
            yield from batch(blocks, 0, 60)

        with pytest.raises(DeliveryError, match="another worker has published") as raised:
            slow.write(dataclasses.replace(batch(blocks, 0, 60), blocks=overtaken))
        assert is_retryable(raised.value)
        assert slow.write(batch(blocks, 0, 60)).events == 40
        assert offsets(store, prefix) == list(range(60))
        assert data(store, prefix) == sorted(visible(store, prefix))

    def test_of_a_dead_letter_is_an_object_more_and_no_rewind(self, sinks: Any, store: Any, prefix: str) -> None:
        blocks = make_events(60)
        sinks().write(batch(blocks, 0, 40).without([7]))
        dead_letter = dataclasses.replace(batch(blocks, 7, 8), redelivered=True)
        for _ in range(2):
            assert sinks().write(dead_letter).events == 1
        assert sinks().write(batch(blocks, 0, 60)).events == 20
        assert offsets(store, prefix) == list(range(60))

    def test_of_a_dead_letter_that_an_older_version_sent_leaves_one(self, sinks: Any, store: Any, prefix: str) -> None:
        blocks = make_events(20)
        sinks().write(batch(blocks, 0, 20).without([7]))
        older, object_name = f"{prefix}/_tidemill/manifests/letter-{7:020}.json", "public/orders/letter-7.jsonl"
        obstore.put(store, f"{prefix}/{object_name}", b'{"offset": 7}\n')
        obstore.put(store, older, orjson.dumps({"start": 7, "end": 8, "files": [{"path": object_name}]}))
        assert offsets(store, prefix) == list(range(20))
        sinks().write(dataclasses.replace(batch(blocks, 7, 8), redelivered=True))
        assert offsets(store, prefix) == list(range(20))
        assert data(store, prefix) == sorted(visible(store, prefix))


class TestAnotherLog:
    def test_whose_offsets_begin_anew_is_refused_and_told_the_way_out(
        self, sinks: Any, store: Any, prefix: str
    ) -> None:
        sinks().write(delivery_of(make_block(50, positions="0/100")))
        for rows in (20, 70):
            with pytest.raises(Refused, match="do not show that they hold the events") as raised:
                sinks().write(delivery_of(make_block(rows, positions="7/900")))
            assert "new prefix" in raised.value.fix
        assert len(visible(store, prefix)) == 1

    def test_of_another_pipeline_is_refused_by_name(self, sinks: Any) -> None:
        sinks().write(delivery_of(make_block(5)))
        with pytest.raises(Refused, match='belongs to pipeline "shop", sink "s"'):
            sinks().write(dataclasses.replace(delivery_of(make_block(5)), pipeline="other"))


class TestTrouble:
    def test_a_wrong_secret_is_refused_in_plain_words_and_not_told(self, sinks: Any) -> None:
        sink = sinks(secret_access_key="hush-hush")
        with pytest.raises(Refused, match="S3 refused: SignatureDoesNotMatch") as raised:
            sink.write(delivery_of(make_block(1)))
        assert "hush" not in str(raised.value)
        assert "secret_access_key" in raised.value.fix
        assert [c.outcome for c in sink.doctor()] == [Outcome.FAIL]

    def test_a_bucket_that_is_missing_is_refused(self, sinks: Any) -> None:
        with pytest.raises(Refused, match="NoSuchBucket"):
            sinks(bucket="nowhere").write(delivery_of(make_block(1)))

    def test_a_store_that_is_away_is_worth_a_retry(self, sinks: Any) -> None:
        sink = sinks(endpoint=f"http://127.0.0.1:{free_port()}")
        with pytest.raises(DeliveryError) as raised:
            sink.write(delivery_of(make_block(1)))
        assert is_retryable(raised.value)

    def test_rows_without_a_folder_are_named_all_at_once(self, sinks: Any, store: Any, prefix: str) -> None:
        with pytest.raises(Poisoned) as raised:
            sinks(path="x/${after.note}").write(delivery_of(make_block(7)))
        assert sorted(raised.value.reasons) == [0, 3, 6]
        assert data(store, prefix) == []


def test_a_folder_of_dots_is_a_dead_letter(sinks: Any) -> None:
    with pytest.raises(Poisoned) as raised:
        sinks(path="a/.${after.note:-}").write(delivery_of(make_block(4)))
    assert raised.value.reasons == dict.fromkeys([0, 3], "its folder's name is . or ..")


def test_doctor_leaves_nothing_behind(sinks: Any, store: Any, prefix: str) -> None:
    assert {c.name: c.outcome for c in sinks().doctor()} == {"bucket": Outcome.PASS, "writes": Outcome.PASS}
    assert obstore.list(store, f"{prefix}/").collect() == []


class Careless(http.server.BaseHTTPRequestHandler):
    """A stand-in for a store that takes no notice of If-None-Match; it keeps objects in `server.objects`."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        self._answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    def do_PUT(self) -> None:
        self.server.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_POST(self) -> None:
        """The removal of several at once."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = re.findall("<Key>(.*?)</Key>", body)
        for key in keys:
            del self.server.objects[f"/lake/{key}"]
        removed = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{removed}</DeleteResult>".encode())

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing on the test's output."""


def test_doctor_finds_a_store_that_ignores_conditions(sinks: Any) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Careless) as careless:
        careless.objects = {}  # type: ignore[attr-defined]
        thread = threading.Thread(target=careless.serve_forever)
        thread.start()
        checks = {c.name: c for c in sinks(endpoint=f"http://127.0.0.1:{careless.server_port}").doctor()}
        careless.shutdown()
        thread.join()
    assert (checks["bucket"].outcome, checks["writes"].outcome) == (Outcome.PASS, Outcome.FAIL)
    assert "If-None-Match" in checks["writes"].detail
    assert careless.objects == {}  # type: ignore[attr-defined]


def test_secrets_are_masked_and_yet_reach_the_worker() -> None:
    config = S3Config.model_validate(
        {"id": "s", "bucket": "lake", "access_key_id": "k", "secret_access_key": "HIDE", "session_token": "HIDE"}
    )
    assert "HIDE" not in str(mask(config))
    assert S3Config.model_validate(reveal(config)) == config


@pytest.mark.parametrize(
    "options",
    [
        {"bucket": "x"}, {"path": "${nope}"}, {"format": "arrow", "compression": "gzip"}, {"access_key_id": "k"},
        {"prefix": "a/../b"}, {"path": "./${source.table}"}, {"path": "a\tb"}, {"tls": {"certificate_file": "c"}},
        {"endpoint": "minio:9000"}, {"envelope": "cloudevents", "cloudevents_mode": "binary"},
    ],
)  # fmt: skip
def test_a_config_that_cannot_work_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        S3Config.model_validate({"id": "s", "bucket": "lake", **options})


def _killed(*_: object) -> None:
    raise Killed
