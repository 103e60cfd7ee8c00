"""An archive of the classes that Spark's Java loads (class data sharing): with it Java takes half of the CPU to start.

A run that finds none has Java write down the names of its classes. When the run has lived for a while, another Java
makes the archive of them, at the lowest priority. It lies beside the compiled kernels. Java itself sees to it that an
archive fits: one of other jars or of another Java is as none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidemill.disk.private import open_file
from tidemill.stream.spark.gateway import spark_home
from tidemill.telemetry import events

AFTER_SECONDS = 30.0  # what a run loads has been loaded by then
_LIMIT_SECONDS = 300.0
_OPTIONS = ("SharedArchiveFile", "ArchiveClassesAtExit", "DumpLoadedClassList", "-Xshare")
# Java would say on standard output that an archive does not fit.
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"
_ARCHIVE = "-XX:SharedArchiveFile="
_NAMES, _LIST = "-XX:DumpLoadedClassList=", ".classes"
_NAMED = "spark-"
_KEPT = 2


def archive_options(asked: str) -> str:
    """For Java: the archive that there is, or else a file for the names of its classes. Nothing where somebody has
    `asked` for other options of this kind, or where there is no place for files."""
    place = find_place()
    if place is None or any(option in asked for option in _OPTIONS):
        return ""
    if place.exists():
        with suppress(OSError):
            os.utime(place)  # in use: it is removed after those that are not
        return f"{_ARCHIVE}{place} {_SILENT}"
    _tidy(place.parent)  # runs that were shorter left their lists
    return f"{_NAMES}{_list_of_this_process(place)}"


def begin_archive(spark: Any) -> None:
    """Has the archive made beside a run that may be long, if its Java writes down classes."""
    options = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions", "")
    place, named = find_place(), re.search(rf"{_NAMES}(\S+{_LIST})(?!\S)", options)
    if place is None or named is None:
        return
    system = spark.sparkContext._jvm.java.lang.System
    java, classes = f"{system.getProperty('java.home')}/bin/java", system.getProperty("java.class.path")

    def wait() -> None:
        time.sleep(AFTER_SECONDS)
        try:
            make_archive(place, Path(named[1]), java, classes)
        except OSError as error:
            events.emit("spark.classes_not_archived", error=str(error))

    threading.Thread(target=wait, name="class-archive", daemon=True).start()


def drop_archive(options: str) -> bool:
    """After a Java that was started with `options` did not live: removes the archive if it had ours. Java looks at the
    header of an archive only: one that was cut off, or that a disk has changed, kills it at every start."""
    place = find_place()
    if place is None or f"{_ARCHIVE}{place} " not in options:
        return False
    with suppress(OSError):
        place.unlink()
    return not place.exists()


def make_archive(place: Path, names: Path, java: str, classes: str) -> bool:
    """False if that is not possible, or another process makes or has made it. Atomic: a run that ends meanwhile leaves
    none."""
    lock = open_file(place.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if place.exists():
            return False
        part, chosen = place.with_suffix(".part"), _list_of_this_process(place, "-whole")
        chosen.write_bytes(names.read_bytes().rpartition(b"\n")[0] + b"\n")  # Java still writes
        command = [java, "-Xshare:dump", f"-XX:SharedClassListFile={chosen}", f"{_ARCHIVE}{part}",
                   "-XX:+UseSerialGC", *_SILENT.split(), "-cp", classes]  # fmt: skip
        # The lock is the child's too: one that outlives us keeps others from writing the same file.
        child = subprocess.Popen(command, pass_fds=(lock,), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, child.pid, 19)
        try:
            code = child.wait(_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        chosen.unlink()
        if code or not part.exists():
            events.emit("spark.classes_not_archived", exit_code=code)
            return False
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.chmod(0o600)
        part.replace(place)
        names.unlink(missing_ok=True)
        _tidy(place.parent)
        events.emit("spark.classes_archived", bytes=place.stat().st_size)
        return True
    finally:
        os.close(lock)


def _list_of_this_process(place: Path, kind: str = "") -> Path:
    """`_tidy` knows by the name whose it is."""
    return place.with_name(f"{place.stem}{kind}.{os.getpid()}{_LIST}")


def _tidy(folder: Path) -> None:
    """Removes all but the archives used last, and lists of runs that have ended. A start does not fail by it: other
    processes tidy up at the same time, and who may read may not be allowed to remove."""
    with suppress(OSError):
        found = sorted(folder.glob(f"{_NAMED}*.jsa"), key=_last_use, reverse=True)
        for each in found[_KEPT:]:
            for suffix in (".jsa", ".lock"):
                each.with_suffix(suffix).unlink(missing_ok=True)
        for each in folder.glob(f"{_NAMED}*{_LIST}"):
            owner = each.suffixes[-2:-1]  # none: a list that an earlier version left when it was killed
            if not owner or not Path(f"/proc/{owner[0][1:]}").exists():
                each.unlink(missing_ok=True)


def _last_use(archive: Path) -> float:
    try:
        return archive.stat().st_mtime
    except OSError:  # another process was faster
        return 0.0


def find_place(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Beside the folders of kernels (`kernel_cache.py`): nobody else may write there. Named by what made it."""
    kernels = environment.get("NUMBA_CACHE_DIR")
    home = environment.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if kernels is None or java is None:
        return None
    folder, digest = Path(kernels).parent, hashlib.sha256()
    for path in (Path(java).resolve(), spark_home() / "jars"):
        try:
            seen = path.stat()
        except OSError:
            return None
        digest.update(f"{path}\0{seen.st_mtime_ns}\0{seen.st_size}\0".encode())
    place = folder / f"{_NAMED}{digest.hexdigest()[:16]}.jsa"
    # Java's options are divided at blanks.
    return place if os.access(folder, os.W_OK) and not set(str(place)) & set(" \t\"'\\") else None
