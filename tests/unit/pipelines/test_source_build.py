"""The build of a whole tree: checked before, one line while it runs, resumed after a kill."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sample_additions
import sample_tree as sample
from sample_files import lay, program

from torchfork.additions.load import Additions
from torchfork.errors import CompileError, ForkError, OutputError, StateError, ToolMissingError
from torchfork.native import toolchain
from torchfork.pipelines import settings, source_build
from torchfork.pipelines.settings import Environment, Setting
from torchfork.upstream import pins
from torchfork.upstream.tree import SourceTree
from torchfork.util import process

SETTLED = (Setting("USE_CUDA", "0", "default", ""), Setting("MAX_JOBS", "1", "machine", ""))
# Stands for `python -m build`: runs what the test wrote into the tree's setup.py.
FRONTEND = """\
import runpy, sys
sys.argv = [sys.argv[-1] + "/setup.py", *sys.argv]
runpy.run_path(sys.argv[0])
"""
GOOD = """\
import os, sys
print("[1/2] Building CXX object a.o")
print("[2/2] Linking CXX shared library", os.environ["USE_CUDA"], flush=True)
out = sys.argv[sys.argv.index("--outdir") + 1]
os.makedirs(out, exist_ok=True)
open(out + "/torch-9.1.0+ext1-cp311-cp311-linux_x86_64.whl", "w").write("a wheel")
"""


class Bench:
    """A tree whose setup.py is the test's own."""

    def __init__(self, root: Path) -> None:
        self.tree: SourceTree = sample.unpacked(root / "tree")
        self.additions: Additions = sample_additions.write(
            root / "additions", native__cpu__SwingKernel_cpp="// a kernel\n"
        )
        self.log = root / "build.log"
        self.shown: list[str] = []
        self.python = root / "env" / "bin" / "python"
        modules = lay(root / "modules", {"build/__main__.py": FRONTEND})
        program(self.python, f'PYTHONPATH="{modules}" exec "{sys.executable}" "$@"')

    def build(self, setup: str) -> tuple[Path, int]:
        (self.tree.root / "setup.py").write_text(setup)
        building = source_build.SourceBuild(
            self.tree, self.additions, self.environment(), self.log.parent
        )
        return building.run(lambda done, total, text: self.shown.append(text))

    def environment(self, *more: Setting) -> Environment:
        return Environment(self.python, (*SETTLED, *more))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "a place")


def test_the_backends_wheel_comes_out_and_the_output_is_in_the_log(bench: Bench) -> None:
    wheel, steps = bench.build(GOOD)
    assert wheel.read_text() == "a wheel" and steps == 2
    assert bench.shown == ["1 of 2", "2 of 2"]
    with pytest.raises(CompileError) as caught:
        bench.build("print('new.cpp:2:1: error: of the second run'); raise SystemExit(1)")
    assert "new.cpp:2" in caught.value.where, "judged by its own part of the log"
    assert "[2/2] Linking CXX shared library 0" in bench.log.read_text()


@pytest.mark.parametrize(
    ("said", "error", "where", "says"),
    [
        ("{kernel}:7:3: error: no semicolon", CompileError, "{source}:7", ["no semicolon"]),
        ("c++: fatal error: Killed signal terminated program cc1plus", CompileError, "{log}",
         ["out of memory", "MAX_JOBS=1"]),
        ("x.cpp:1:10: fatal error: cpuinfo.h: No such file or directory", ToolMissingError,
         "x.cpp:1", ["cpuinfo.h"]),
        ("x: No space left on device", OutputError, "{place}", ["disk is full"]),
    ],
)  # fmt: skip
def test_a_failed_build_names_the_cause_and_the_file_of_the_additions(
    bench: Bench, said: str, error: type[ForkError], where: str, says: list[str]
) -> None:
    name = "native/cpu/SwingKernel.cpp"
    kernel, source = bench.tree.root / "aten/src/ATen" / name, bench.additions.source_root / name
    output = f"FAILED: x.o\n{said.format(kernel=kernel)}"
    with pytest.raises(error) as caught:
        bench.build(f"print({output!r}); raise SystemExit(1)")
    places = {"source": source, "log": bench.log, "place": bench.log.parent}
    assert caught.value.where == where.format(**places)
    assert all(text in str(caught.value) for text in says)


def test_too_little_disk_is_refused_and_too_little_memory_warned_of_before_anything_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(size: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: type("usage", (), {"free": size}))

    free(10**9)
    with pytest.raises(OutputError, match=r"needs 8 GB of disk, 1\.0 GB are free"):
        settings.require_space(bench.tree, bench.environment())
    free(10**11)
    monkeypatch.setattr(toolchain, "available_memory", lambda: 3 * 10**9)
    four = bench.environment(Setting("MAX_JOBS", "4", "user", ""))
    assert "MAX_JOBS=2" in settings.require_space(bench.tree, four)
    assert settings.require_space(bench.tree, bench.environment()) == ""


def same(bench: Bench, *more: Setting, fresh: bool = False) -> None:
    settings.require_same_settings(bench.tree, bench.environment(*more), fresh=fresh)


def test_a_build_directory_of_other_settings_is_rebuilt_only_with_consent(bench: Bench) -> None:
    same(bench)  # none yet
    (bench.tree.root / "build").mkdir()
    with pytest.raises(StateError, match="other settings"):
        same(bench)  # somebody else's
    bench.build(GOOD)
    same(bench)
    same(
        bench, Setting("CCACHE_DIR", "/elsewhere", "user", ""), Setting("MAX_JOBS", "7", "user", "")
    )
    with pytest.raises(StateError, match="other settings") as caught:
        same(bench, Setting("CXX", "g++-13", "user", ""))
    assert "CXX: (unset) → g++-13" in caught.value.why and "--fresh" in caught.value.next
    with pytest.raises(StateError, match=r"→ \(unset\)"):
        settings.require_same_settings(bench.tree, Environment(bench.python, ()), fresh=False)
    assert (bench.tree.root / "build").is_dir()
    same(bench, Setting("CXX", "g++-13", "user", ""), fresh=True)
    assert not (bench.tree.root / "build").exists()


def test_new_kernels_make_cmake_look_again_and_edits_do_not(bench: Bench) -> None:
    cache = bench.tree.root / "build" / "CMakeCache.txt"
    bench.build(GOOD)
    cache.write_text("")
    os.utime(cache, (1_600_000_000, 1_600_000_000))
    (bench.additions.source_root / "native/cpu/SwingKernel.cpp").write_text("// edited\n")
    bench.build(GOOD)
    assert int(cache.stat().st_mtime) == 1_600_000_000
    bench.additions = sample_additions.write(bench.additions.root, native__More_cpp="// new\n")
    bench.build(GOOD)
    assert cache.stat().st_mtime > 1_700_000_000


def test_a_license_that_a_killed_packing_left_longer_is_put_right(bench: Bench) -> None:
    path = bench.tree.root / "LICENSE"
    own = "Permission is granted.\n"
    path.write_text(own + "\n\nThe PyTorch repository and source distributions bundle several")
    bench.build(GOOD)
    assert path.read_text() == own


@pytest.mark.parametrize(
    ("version", "suffix", "fault"),
    [("3.9.1", ".so", "too old"), ("3.15.0", ".so", "too new"),
     ("3.13.2", ".cpython-313t-x86_64-linux-gnu.so", r"a build \(cp313t\)")],
)  # fmt: skip
def test_a_python_that_a_release_is_not_for_is_refused(
    bench: Bench, version: str, suffix: str, fault: str
) -> None:
    release = pins.load().get("2.6.0")
    interpreter = sample_additions.base(bench.tree.root.parent / "base").interpreter
    other = replace(interpreter, version=version, extension_suffix=suffix)
    with pytest.raises(ToolMissingError, match=fault):
        source_build.require_python(bench.tree, other, release)
    source_build.require_python(bench.tree, interpreter, release)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("3.10.0", None), ("3.31.0", {}), ("4.1.0", {"CMAKE_POLICY_VERSION_MINIMUM": "3.5"})],
)
def test_cmake_may_be_neither_too_old_nor_left_alone_when_too_new(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, version: str, expected: dict[str, str] | None
) -> None:
    (bench.tree.root / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.18)\n")
    outcome = process.Outcome(("cmake",), 0, f"cmake version {version}\n", "")
    monkeypatch.setattr(process, "run", lambda *a, **k: outcome)
    refused = pytest.raises(ToolMissingError, match=r"asks for 3\.18|too old")
    with refused if expected is None else contextlib.nullcontext():
        assert source_build.require_cmake(bench.tree, bench.python) == expected
