"""Runs in the Python processes of Spark before anything is imported: it takes Spark's archives off the path, and in the
planning process of a stream it answers Java at once.

Java gives that process ten seconds to connect, fixed in its code (PythonWorkerFactory.createSimpleWorker, Spark 4.3).
In that time it would import PySpark, uncompiled out of an archive, which takes longer on a busy machine; then the
stream fails and is started again, which makes the machine busier. So we connect first, hand the connection to PySpark
when it asks for one, and have a minute for what is in between. `session.register_source` puts this directory on the
process's path. The interpreter imports one `sitecustomize`; one of the environment's own is run by ours.
"""

import os
import sys

_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
_SECONDS = 60


def leave_out_archives() -> None:
    """Spark puts PySpark on the path as an archive, with a jar beside it. Out of an archive modules come uncompiled,
    and each worker reads the list of its files again for every package of PySpark that was imported: 16 MB. Where
    the archives belong to an installed PySpark, that one is taken."""
    import zipimport
    from importlib.machinery import PathFinder

    plain = [place for place in sys.path if not place.endswith((".zip", ".jar"))]
    spark, py4j = (PathFinder.find_spec(name, plain) for name in ("pyspark", "py4j"))
    if spark is None or spark.origin is None or py4j is None:
        return
    inside = os.path.join(os.path.dirname(os.path.realpath(spark.origin)), "")
    archives = [place for place in sys.path if place not in plain and os.path.realpath(place).startswith(inside)]
    sys.path[:] = [place for place in sys.path if place not in archives]
    for archive in archives:
        sys.path_importer_cache.pop(archive, None)
        zipimport._zip_directory_cache.pop(archive, None)  # type: ignore[attr-defined]


def connect_early(seconds: int = _SECONDS) -> None:
    """Where Java listens on TCP, which takes a setting, everything stays as PySpark does it."""
    import signal
    import socket

    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    if not path:
        return
    early = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        early.connect(path)
    except OSError:
        early.close()
        return  # PySpark will meet the same, and say it
    signal.alarm(seconds)  # the kernel ends what has not come up by then, and Java sees a closed connection
    plain = socket.socket.connect

    def connect(self: socket.socket, address: object) -> None:
        if address != path:
            plain(self, address)  # type: ignore[arg-type]
            return
        signal.alarm(0)
        socket.socket.connect = plain  # type: ignore[method-assign]
        early.settimeout(self.gettimeout())
        os.dup2(early.fileno(), self.fileno(), inheritable=False)
        early.close()

    socket.socket.connect = connect  # type: ignore[method-assign,assignment]


def run_the_other() -> None:
    """The `sitecustomize` that the interpreter would have found without us."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [place for place in sys.path if os.path.abspath(place) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


leave_out_archives()
if _PLANNER in sys.orig_argv:
    connect_early()
run_the_other()
