"""Ports of private servers: two runs on one machine do not meet."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tidemill.lab.servers.process import free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.skipif(not RANGE.exists(), reason="only Linux says which ports outgoing connections get")
def test_no_outgoing_connection_is_given_the_port_of_a_server_that_is_just_restarting() -> None:
    first, last = map(int, RANGE.read_text().split())
    assert not [port for port in free_ports(50) if first <= port <= last]
