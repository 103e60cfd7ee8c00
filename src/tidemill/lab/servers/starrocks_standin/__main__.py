"""The stand-in as a process of its own, started by `StarRocks`."""

from tidemill.lab.servers.starrocks_standin import serve

serve()
