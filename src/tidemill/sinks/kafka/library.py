"""The same producer through `confluent_kafka.Producer`, one Python call per message.

For where `probe` found that librdkafka is not what our declarations say. Keys, headers, partitions, errors and
transactions are those of the direct way.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.sinks.kafka.client import NO_HEADERS, QUEUE_FULL, KafkaFailure, Messages, Producer, Transactional
from tidemill.sinks.kafka.client_log import ClientLog


class LibraryProducer(Producer):
    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        try:
            import confluent_kafka
        except ImportError as error:
            raise EnvironmentProblem(
                "the kafka sink needs confluent-kafka", fix="pip install 'tidemill[kafka]'"
            ) from error
        self._kafka: Any = confluent_kafka
        self._fatal_error: tuple[int, str] | None = None
        self._topics: dict[str, int] = {}
        self._topic_names: list[str] = []
        self._headers: dict[tuple[tuple[str, bytes], ...], int] = {(): NO_HEADERS}
        self._header_sets: list[tuple[tuple[str, bytes], ...]] = [()]
        own = {"delivery.report.only.error": True, "error_cb": self._on_error}
        try:
            self._producer: Any = confluent_kafka.Producer({**settings, **own}, logger=ClientLog())
        except confluent_kafka.KafkaException as error:
            raise ConfigError(error.args[0].str(), fix="Mend client_conf.") from error

    def topic(self, name: str) -> int:
        if name not in self._topics:
            self._topics[name] = len(self._topic_names)
            self._topic_names.append(name)
        return self._topics[name]

    def headers(self, pairs: tuple[tuple[str, bytes], ...]) -> int:
        if pairs not in self._headers:
            self._headers[pairs] = len(self._header_sets)
            self._header_sets.append(pairs)
        return self._headers[pairs]

    def _enqueuer(self, messages: Messages, partition: int) -> Callable[[int], tuple[int, int]]:
        values, keys = messages.values.to_pylist(), messages.keys.to_pylist()
        topics = [self._topic_names[handle] for handle in messages.topics]
        topic_of = messages.topic_of.tolist()
        sets = [self._header_sets[handle] for handle in messages.headers]
        headers_of = messages.headers_of.tolist()
        row_headers = [(name, strings.to_pylist()) for name, strings in messages.row_headers.items()]
        numbers = [None] * len(values) if messages.numbers is None else messages.numbers.tolist()
        produce, failed, unwanted = self._producer.produce, self._on_failed, self._kafka.KafkaException

        def enqueue(first: int) -> tuple[int, int]:
            for i in range(first, len(values)):
                options: dict[str, Any] = {}
                if fixed := sets[headers_of[i]]:
                    varying = [(name, strings[i]) for name, strings in row_headers if strings[i] is not None]
                    options["headers"] = [*fixed, *varying]
                try:
                    produce(
                        topics[topic_of[i]], values[i], keys[i], partition, on_delivery=partial(failed, numbers[i]),
                        **options,
                    )  # fmt: skip
                except BufferError:
                    return i, QUEUE_FULL
                except unwanted as error:
                    return i, error.args[0].code()
            return len(values), 0

        return enqueue

    def _poll(self, milliseconds: int) -> None:
        with self._noting_fatal():
            self._producer.poll(milliseconds / 1000)

    def _flush(self, milliseconds: int) -> None:
        with self._noting_fatal():
            self._producer.flush(milliseconds / 1000)

    @contextlib.contextmanager
    def _noting_fatal(self) -> Iterator[None]:
        """A fatal error is raised by whatever call meets it first, instead of being given to `error_cb`."""
        try:
            yield
        except self._kafka.KafkaException as error:
            cause = error.args[0]
            if not cause.fatal():
                raise KafkaFailure(cause.code(), cause.str()) from error
            self._fatal_error = (cause.code(), cause.str())

    def _count_queued(self) -> int:
        return len(self._producer)

    def _transact(self, what: Transactional, milliseconds: int) -> None:
        producer, seconds = self._producer, milliseconds / 1000
        try:
            match what:
                case "init":
                    producer.init_transactions(seconds)
                case "begin":
                    producer.begin_transaction()
                case "commit":
                    producer.commit_transaction(seconds)
                case "abort":
                    producer.abort_transaction(seconds)
        except self._kafka.KafkaException as error:
            cause = error.args[0]
            if cause.fatal():
                self._fatal_error = (cause.code(), cause.str())  # else only the reports of purged messages tell
            raise KafkaFailure(
                cause.code(), cause.str(), retriable=cause.retriable(), abortable=cause.txn_requires_abort()
            ) from error

    def _fatal(self) -> tuple[int, str] | None:
        return self._fatal_error

    def _text(self, code: int) -> str:
        return str(self._kafka.KafkaError(code).str())

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        with self._noting_fatal():
            producer.purge(blocking=False)
            producer.flush(0.1)
        # The object's end destroys the handle.

    def _forget(self) -> None:
        # In a forked child that would wait for threads that are not here: one reference more, and it never ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))
        self._producer = None

    def _on_failed(self, number: int | None, error: Any, message: Any) -> None:
        if error is not None:
            size = len(message.value() or b"") + len(message.key() or b"")
            self._note_failed(error.code(), lambda: message.topic() or "", number, size)

    def _on_error(self, error: Any) -> None:
        self.last_problem = (error.code(), error.str())
        if error.fatal():
            self._fatal_error = self.last_problem
