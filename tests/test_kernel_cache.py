"""Compiled kernels lie where they can be kept, and never outlive the sources that they were compiled from."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tidemill
from tidemill import kernel_cache

_PACKAGE = Path(tidemill.__file__).parent

# Root may write everywhere, so the refusal of the package's own folder is simulated; that of the home is real.
_PROGRAM = """
import os
allowed = os.access
os.access = lambda path, mode: not str(path).endswith("tidemill") and allowed(path, mode)
import tidemill
print(os.environ.get("NUMBA_CACHE_DIR", "numba's choice"))
"""


class TestPlace:
    def test_beside_the_package_where_that_can_be_written(self, tmp_path: Path) -> None:
        package = _copy(tmp_path)
        chosen = Path(_run("import os, tidemill; print(os.environ['NUMBA_CACHE_DIR'])", package))
        assert chosen.parent == package / "__pycache__"

    def test_without_a_writable_package_the_users_cache(self, tmp_path: Path) -> None:
        assert Path(_cache_dir(XDG_CACHE_HOME=str(tmp_path))).parent == tmp_path / "numba"

    def test_without_any_writable_place_a_private_temporary_folder(self, tmp_path: Path) -> None:
        chosen = Path(_cache_dir(XDG_CACHE_HOME="/proc/nowhere", TMPDIR=str(tmp_path)))
        assert chosen.parent.parent == tmp_path
        assert chosen.parent.stat().st_mode & 0o077 == 0
        assert _cache_dir(XDG_CACHE_HOME="/proc/nowhere", TMPDIR=str(tmp_path)) == str(chosen)

    def test_a_link_in_the_way_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        trap = tmp_path / f"tidemill-kernels-{os.getuid()}"
        trap.symlink_to(tmp_path / "elsewhere")
        assert Path(_cache_dir(XDG_CACHE_HOME="/proc/nowhere", TMPDIR=str(tmp_path))).parent != trap

    def test_a_child_process_goes_on_with_its_parents_folder(self, tmp_path: Path) -> None:
        parent = _cache_dir(NUMBA_CACHE_DIR=str(tmp_path))
        assert Path(parent).parent == tmp_path
        assert _cache_dir(NUMBA_CACHE_DIR=parent) == parent

    def test_a_child_process_of_another_version_gets_a_folder_beside_its_parents(self, tmp_path: Path) -> None:
        other = tmp_path / f"kernels-{0:016x}"
        assert Path(_cache_dir(NUMBA_CACHE_DIR=str(other))).parent == tmp_path

    def test_a_folder_that_cannot_be_written_is_passed_over(self, tmp_path: Path) -> None:
        chosen = _cache_dir(NUMBA_CACHE_DIR="/proc/nowhere", XDG_CACHE_HOME=str(tmp_path))
        assert Path(chosen).parent == tmp_path / "numba"

    def test_numba_that_was_imported_before_takes_it_too(self, tmp_path: Path) -> None:
        program = "import numba, os, tidemill; print(numba.config.CACHE_DIR == os.environ['NUMBA_CACHE_DIR'])"
        assert _run(program, _PACKAGE, NUMBA_CACHE_DIR=str(tmp_path)) == "True"

    def test_only_the_folders_used_last_are_kept_and_nothing_else_is_touched(self, tmp_path: Path) -> None:
        folders = [tmp_path / f"kernels-{number:016x}" for number in range(kernel_cache.KEPT + 3)]
        for age, folder in enumerate(folders):
            (folder / "encoding_0123").mkdir(parents=True)
            os.utime(folder, (1_000_000 - age, 1_000_000 - age))
        strangers = [tmp_path / "kernels-of-others", tmp_path / "encoding_0123"]
        for stranger in strangers:
            stranger.mkdir()
        own = Path(_cache_dir(NUMBA_CACHE_DIR=str(tmp_path)))
        assert set(tmp_path.iterdir()) == {own, *folders[: kernel_cache.KEPT - 1], *strangers}


_CHECKSUM = """
import numpy as np
from tidemill.decoders._shared.crc32 import crc32
print(crc32(np.arange(64, dtype=np.uint8), 0, 64))
"""


class TestFreshness:
    @pytest.mark.slow  # compiles kernels
    def test_a_changed_helper_is_seen_by_the_kernels_that_inlined_it(self, tmp_path: Path) -> None:
        package = _copy(tmp_path)
        before = _run(_CHECKSUM, package)
        helper = package / "decoders/_shared/eight_bytes.py"
        text = helper.read_text()
        changed = text.replace("    return (\n        _U(b[q]) |", "    return (\n        _U(b[q]) ^ _2 |", 1)
        assert changed != text
        helper.write_text(changed)
        assert _run(_CHECKSUM, package) != before
        helper.write_text(text)
        assert _run(_CHECKSUM, package) == before

    def test_contents_count_and_not_times(self, tmp_path: Path) -> None:
        package = _copy(tmp_path)
        before = kernel_cache.digest(str(package))
        helper = package / "encoding/numbers.py"
        seen = helper.stat()
        os.utime(helper)
        assert kernel_cache.digest(str(package)) == before
        helper.write_bytes(helper.read_bytes().replace(b"0", b"1"))
        os.utime(helper, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert kernel_cache.digest(str(package)) != before

    def test_what_has_no_part_in_kernels_does_not_compile_them_anew(self, tmp_path: Path) -> None:
        package = _copy(tmp_path)
        before = kernel_cache.digest(str(package))
        (package / "errors.py").write_text("# other\n")
        assert kernel_cache.digest(str(package)) == before

    @pytest.mark.parametrize("module", ["numba", "llvmlite", "numpy"])
    def test_another_version_of_the_compiler_counts(
        self, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = kernel_cache.digest(str(_PACKAGE))
        (tmp_path / "version.py").write_text("other")
        (tmp_path / "_version.py").write_text("other")
        spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
        monkeypatch.setattr(kernel_cache, "find_spec", lambda name: spec if name == module else find_spec(name))
        assert kernel_cache.digest(str(_PACKAGE)) != before


def test_what_a_kernel_takes_from_another_module_stands_in_a_kernel_source() -> None:
    """Else the digest would not see it change. Mark the other module: "# Compiled into kernels"."""
    sources = {path for path in _PACKAGE.rglob("*.py") if kernel_cache.is_source(path.read_bytes())}
    assert len(sources) > 20
    assert {f"{path.relative_to(_PACKAGE)}: {name}" for path in sources for name in _foreign(path, sources)} == set()


def _foreign(path: Path, sources: set[Path]) -> set[str]:
    """Names of other modules of the package that compiled functions of this one use, directly or by a global."""
    tree = ast.parse(path.read_text())
    imported: dict[str, Path] = {}
    given: dict[str, set[str]] = {}  # a global, and the names in its definition
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidemill"):
            for alias in node.names:
                module = _file(f"{node.module}.{alias.name}") or _file(str(node.module))
                assert module is not None
                imported[alias.asname or alias.name] = module
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                given.update({name: _names(node.value) for name in _names(target)})
    pending = set[str]()
    for function in (item for item in ast.walk(tree) if isinstance(item, ast.FunctionDef)):
        if any({"njit", "intrinsic"} & _names(decorator) for decorator in function.decorator_list):
            pending |= {name for statement in function.body for name in _names(statement)}
    used = set[str]()
    while pending:
        name = pending.pop()
        used.add(name)
        pending |= given.get(name, set()) - used
    return {name for name in used if name in imported and imported[name] not in sources}


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _file(module: str) -> Path | None:
    path = _PACKAGE.parent.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()), None)


def _copy(folder: Path) -> Path:
    return Path(shutil.copytree(_PACKAGE, folder / "tidemill", ignore=shutil.ignore_patterns("__pycache__")))


def _cache_dir(**environment: str) -> str:
    return _run(_PROGRAM, _PACKAGE, **environment)


def _run(program: str, package: Path, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "PYTHONPATH": str(package.parent), **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()
