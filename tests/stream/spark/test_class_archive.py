"""The archive of Java's classes: found, made beside a run, and never half made."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.support.waiting import until
from tidemill.errors import EnvironmentProblem
from tidemill.stream.spark import session
from tidemill.stream.spark.class_archive import archive_options, find_place, make_archive
from tidemill.stream.spark.gateway import StartedJava
from tidemill.stream.spark.settings import session_settings

JAVA = """#!/bin/sh
for each; do case "$each" in
  -XX:SharedArchiveFile=*) archive="${{each#*=}}";;
  -XX:SharedClassListFile=*) names="${{each#*=}}";;
esac; done
cp "$names" "$archive"
exit {code}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache" / "kernels-0"))
    (tmp_path / "cache").mkdir()
    found = find_place()
    assert found is not None
    return found


@pytest.fixture
def names(tmp_path: Path) -> Path:
    file = tmp_path / "cache" / "spark-0.1073741824.classes"
    file.write_text("java/lang/Object\njava/lang/String\njava/la")
    return file


def archiver(directory: Path, code: int = 0, name: str = "sh") -> str:
    """Stands in for Java."""
    script = directory / name
    script.write_text(JAVA.format(code=code))
    script.chmod(0o700)
    return str(script)


def test_java_writes_down_its_classes_until_there_is_an_archive(place: Path, names: Path) -> None:
    assert archive_options("") == f"-XX:DumpLoadedClassList={place.with_suffix(f'.{os.getpid()}.classes')}"
    assert not names.exists()  # of a run that has ended
    place.write_bytes(b"classes")
    assert archive_options("").startswith(f"-XX:SharedArchiveFile={place} ")


def test_a_run_starts_beside_one_that_makes_the_archive_or_died_at_it(place: Path, names: Path, tmp_path: Path) -> None:
    """Of what the maker left under the archive's name nothing may keep another Java from starting."""
    started: list[str] = []
    script = Path(archiver(tmp_path))
    script.write_text(script.read_text().replace("exit 0", f"ls {place.parent} > {tmp_path}/seen; exit 1"))
    assert not make_archive(place, names, str(script), "a.jar")
    for name in (tmp_path / "seen").read_text().split():
        (place.parent / name).touch()
        started.append(archive_options(""))
    (place.parent / f"{place.stem}.classes").touch()  # by an earlier version
    started.append(archive_options(""))
    assert set(started) == {f"-XX:DumpLoadedClassList={place.with_suffix(f'.{os.getpid()}.classes')}"}


@pytest.mark.parametrize("asked", ["-Xshare:off", "-XX:SharedArchiveFile=/x.jsa", "-XX:ArchiveClassesAtExit=/x"])
def test_who_asks_for_an_archive_gets_no_other(place: Path, asked: str) -> None:
    assert archive_options(f"-Xmx1g {asked}") == ""


def test_a_path_that_javas_options_cannot_hold_is_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a cache").mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a cache" / "kernels-0"))
    assert find_place() is None
    assert archive_options("") == ""


def test_another_java_has_another_archive(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home" / "bin").mkdir(parents=True)
    archiver(tmp_path / "home" / "bin", name="java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_place() not in (place, None)


def test_an_archive_holds_the_names_that_were_whole_and_older_ones_go(place: Path, names: Path, tmp_path: Path) -> None:
    for number in range(3):
        older = place.with_name(f"spark-{number}.jsa")
        older.write_bytes(b"old")
        os.utime(older, (number, number))
    assert make_archive(place, names, archiver(tmp_path), "a.jar")
    assert place.read_text() == "java/lang/Object\njava/lang/String\n"
    assert place.stat().st_mode & 0o777 == 0o600
    assert {each.name for each in place.parent.iterdir()} == {place.name, place.stem + ".lock", "spark-2.jsa"}


def test_a_java_that_fails_leaves_no_archive(place: Path, names: Path, tmp_path: Path) -> None:
    assert not make_archive(place, names, archiver(tmp_path, code=1), "a.jar")
    assert not place.exists()


def test_one_process_makes_it(place: Path, names: Path, tmp_path: Path) -> None:
    with place.with_suffix(".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not make_archive(place, names, archiver(tmp_path), "a.jar")
    assert not place.exists()
    assert make_archive(place, names, archiver(tmp_path), "a.jar")
    assert not make_archive(place, names, archiver(tmp_path), "a.jar")  # it is there


def test_a_run_that_is_killed_while_it_makes_one_keeps_no_other_from_starting(
    place: Path, names: Path, tmp_path: Path
) -> None:
    killed = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tidemill.stream.spark.class_archive import make_archive
        make_archive(*map(Path, sys.argv[1:3]), sys.argv[3], "a.jar")
    """)
    (tmp_path / "sh").write_text("#!/bin/sh\nkill -9 $PPID\n")
    (tmp_path / "sh").chmod(0o700)
    with subprocess.Popen([sys.executable, "-c", killed, place, names, tmp_path / "sh"]) as process:
        assert process.wait() == -signal.SIGKILL
    left = [each for each in place.parent.glob("*.classes") if each != names]
    assert left
    place.with_suffix(".classes").write_text("java/lang/Object\n")  # as earlier versions left it
    assert archive_options("").startswith("-XX:DumpLoadedClassList=")
    assert not list(place.parent.glob("*.classes"))
    names.write_text("java/lang/Object\n")
    # What made the first one may not be gone yet.
    until(lambda: make_archive(place, names, archiver(tmp_path), "a.jar"))


def test_processes_that_tidy_up_at_the_same_time_do_not_fail(place: Path, tmp_path: Path) -> None:
    (place.parent / "spark-gone.jsa").symlink_to(tmp_path / "nothing")
    assert archive_options("").startswith("-XX:DumpLoadedClassList=")


def test_an_archive_that_kills_java_is_removed_so_that_the_next_start_lives(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java looks at the header only: one that was cut off behind it ends in a crash, at every start."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    (home / "jars").mkdir()
    (home / "bin" / "spark-submit").write_text("#!/bin/sh\nkill -ABRT $$\n")
    (home / "bin" / "spark-submit").chmod(0o700)
    monkeypatch.setenv("SPARK_HOME", str(home))
    archive = find_place()
    assert archive is not None
    archive.write_bytes(b"damaged")
    java = StartedJava(session_settings("t", "local[1]"), tmp_path / "spark.log")
    with java.process, pytest.raises(EnvironmentProblem, match="crashed") as caught:
        session.create_session("t", said=tmp_path / "spark.log", java=java)
    assert "start again" in (caught.value.fix or "")
    assert not archive.exists()
