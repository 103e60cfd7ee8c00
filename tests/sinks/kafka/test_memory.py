"""What a producer holds of messages that a broker does not take."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: the memory of one that did other things before says nothing.
_FILL = """
import numpy as np
import pyarrow as pa
from tidemill.sinks.kafka import KafkaConfig
from tidemill.sinks.kafka.client import KafkaFailure, Messages
from tidemill.sinks.kafka.probe import open_producer

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

producer = open_producer(KafkaConfig(id="k", brokers="127.0.0.1:1", topic="t").client_settings())
keys = pa.array([b'{"id":%d}' % i for i in range(10_000)], pa.large_binary())
values = pa.array([b"x" * 160] * len(keys), pa.large_binary())
none = np.zeros(len(keys), np.int64)
headers = [producer.headers((("op", b"insert"), ("table", b"public.orders")))]
messages = Messages(values, keys, [producer.topic("t")], none, headers, none.astype(np.uint8))
before = resident()
try:
    for _ in range(100):
        producer.send(messages, 0.2)
except KafkaFailure:
    print(resident() - before)
"""


def test_a_queue_that_is_full_takes_less_than_a_hundred_megabytes() -> None:
    done = subprocess.run([sys.executable, "-c", _FILL], capture_output=True, text=True, timeout=120, check=True)
    assert 10e6 < int(done.stdout) < 100e6
