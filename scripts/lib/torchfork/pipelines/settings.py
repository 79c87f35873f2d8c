"""The settings of a source build: every variable, where its value comes from, what it needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import OutputError, StateError
from ..native import toolchain
from ..upstream.tree import SourceTree
from ..util import files

Origin = Literal["user", "machine", "source", "default"]

# The file in a build directory that says how it was made.
SETTINGS = "torchfork-settings.json"

# A CPU build of 2.6.0 took 4 GB for its build tree, and the wheel is made in a copy of its files.
BYTES_NEEDED = 8_000_000_000

# Where a tree's build reads variables. CMake gets every USE_*, BUILD_* and CMAKE_* of the
# environment passed on by setup.py (tools/setup_helpers/cmake.py) or cmake/EnvVarForwarding.cmake.
_READERS = (
    "setup.py", "pyproject.toml", "CMakeLists.txt", "cmake/**/*.cmake", "c10/**/CMakeLists.txt",
    "aten/**/CMakeLists.txt", "caffe2/CMakeLists.txt", "torch/CMakeLists.txt", "tools/*.py",
    "tools/setup_helpers/*.py", "tools/autograd/*.py", "torchgen/**/*.py",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One variable of the build's environment."""

    name: str
    value: str
    origin: Origin
    reason: str
    read_by: str = ""  # the file of the tree, or the program; '' where nothing reads it

    @property
    def line(self) -> str:
        """For a shell to read."""
        return f"export {self.name}={shlex.quote(self.value)}"


@dataclass(frozen=True)
class Environment:
    """What a tree is built in and with. python: of the environment that was made for the build."""

    python: Path
    settings: tuple[Setting, ...]

    def value(self, name: str) -> str:
        """A variable's value, '' where it is not set."""
        return self.values.get(name, "")

    @property
    def values(self) -> dict[str, str]:
        """Every variable that the build sets."""
        return {setting.name: setting.value for setting in self.settings}

    @property
    def note(self) -> dict[str, str]:
        """How a build directory was made, as the file in it says."""
        return self.values | {"python": str(self.python)}


def defaults(
    tree: SourceTree,
    *,
    version: str | None,
    prefixes: Sequence[Path],
    environment: Mapping[str, str],
    source: Sequence[Setting],
    epoch: int,
) -> tuple[Setting, ...]:
    """What a build would set, in the order in which it is shown; the user's own values win.

    version: the wheel's version, None to leave it to the tree.
    prefixes: directories that CMake looks for packages in, the most important first.
    source: values that the tree's source needs (Debian's tree lacks some parts), with the reason.
    epoch: seconds since 1970 for everything that carries a date.
    """
    cuda_setting = _cuda(environment, source)
    cuda = _is_on(cuda_setting.value)
    found: list[Setting] = [
        cuda_setting,
        Setting("GEN_TO_SOURCE", "1", "default", "generators write into the sources, where a tree "
                "knows it"),
        _prefix_path(prefixes, environment),
        _jobs(environment, cuda),
        *_launchers(environment, cuda, tree, prefixes),
        Setting("BLAS", "MKL", "default", "upstream's wheels have it"),
        Setting("BUILD_TEST", "0", "default", "C++ tests are no part of a wheel"),
        Setting("SOURCE_DATE_EPOCH", str(epoch), "default", "two builds give the same bytes"),
    ]  # fmt: skip
    if version:
        found.append(Setting("PYTORCH_BUILD_VERSION", version, "default", "the wheel's version"))
        found.append(
            Setting("PYTORCH_BUILD_NUMBER", "1", "default", "a number above 1 appends .postN")
        )
    found += source
    return _resolved(found, environment, tree)


def _resolved(
    found: Iterable[Setting], environment: Mapping[str, str], tree: SourceTree
) -> tuple[Setting, ...]:
    """Later settings win; the user's environment wins last."""
    chosen: dict[str, Setting] = {}
    for setting in found:
        name = setting.name
        if name in environment and setting.origin != "user" and name != "CMAKE_PREFIX_PATH":
            setting = _users(name, environment)
        chosen[name] = setting
    for name in sorted(environment):
        if re.match(r"(USE|BUILD|PYTORCH|MKL|BLAS|ATEN|TORCH_CUDA|CUDA|CUDNN|NCCL)_", name) or (
            name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "MAX_JOBS")
        ):
            chosen.setdefault(name, _users(name, environment))
    texts = _reader_texts(tree)
    return tuple(replace(s, read_by=_read_by(s.name, texts)) for s in chosen.values())


def _users(name: str, environment: Mapping[str, str]) -> Setting:
    return Setting(name, environment[name], "user", "as you set it")


def _cuda(environment: Mapping[str, str], source: Sequence[Setting]) -> Setting:
    """USE_CUDA: as the user says, as the source can, or as there is a compiler for it."""
    if "USE_CUDA" in environment:
        return _users("USE_CUDA", environment)
    for setting in source:
        if setting.name == "USE_CUDA":
            return setting
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH") or "/usr/local/cuda"
    there = Path(home, "bin", "nvcc").is_file()
    there = there or bool(shutil.which("nvcc", path=environment.get("PATH")))
    reason = "nvcc is there" if there else "nvcc is not there"
    return Setting("USE_CUDA", str(int(there)), "machine", reason)


def _is_on(value: str) -> bool:
    """As CMake and setup.py read a switch."""
    return value.upper() not in {"0", "OFF", "NO", "FALSE", "N", ""}


def _prefix_path(prefixes: Sequence[Path], environment: Mapping[str, str]) -> Setting:
    """The user's own prefixes come first; what the build needs is still found behind them."""
    own = [part for part in environment.get("CMAKE_PREFIX_PATH", "").split(";") if part]
    # CMake reads colons in the environment variable and semicolons in its own.
    own = [piece for part in own for piece in part.split(os.pathsep)]
    every = list(dict.fromkeys([*own, *map(str, prefixes)]))
    origin: Origin = "user" if own else "machine"
    reason = "yours, then the build environment's" if own else "the build environment's"
    return Setting("CMAKE_PREFIX_PATH", ";".join(every), origin, reason)


def _jobs(environment: Mapping[str, str], cuda: bool) -> Setting:
    need = toolchain.TREE_CUDA_JOB_BYTES if cuda else toolchain.TREE_JOB_BYTES
    jobs = toolchain.job_count(environment, need)
    reason = (
        f"{toolchain.cores()} cores, {toolchain.available_memory() / 1e9:.0f} GB free, "
        f"{need / 1e9:.1f} GB a compiler"
    )
    return Setting("MAX_JOBS", str(jobs), "machine", reason)


def _launchers(
    environment: Mapping[str, str], cuda: bool, tree: SourceTree, prefixes: Sequence[Path]
) -> list[Setting]:
    launcher = toolchain.find_launcher(environment)
    if not launcher:
        return []
    reason = f"{Path(launcher).name} is there"
    found = [
        Setting(f"CMAKE_{language}_COMPILER_LAUNCHER", launcher, "machine", reason)
        for language in ("C", "CXX", *(["CUDA"] if cuda else []))
    ]
    if Path(launcher.split(";")[0]).name == "ccache":
        # What another directory or machine has compiled is found again: nothing of a path counts.
        found += [
            Setting("CCACHE_BASEDIR", _common(tree, prefixes), "machine",
                    "paths below it do not count"),
            Setting("CCACHE_NOHASHDIR", "1", "default", "nor the current directory"),
            Setting("CCACHE_DEPEND", "1", "default",
                    "a file that is not in the cache is not preprocessed twice"),
            Setting("CCACHE_SLOPPINESS", "pch_defines,time_macros,include_file_mtime,"
                    "include_file_ctime", "default", "what precompiled headers need"),
        ]  # fmt: skip
    return found


def _common(tree: SourceTree, prefixes: Sequence[Path]) -> str:
    """The directory that holds the tree and what it is built with; the tree's own without one."""
    common = Path(os.path.commonpath([tree.root, *prefixes]))
    return str(common if len(common.parts) > 2 else tree.root.parent)


def _reader_texts(tree: SourceTree) -> dict[str, str]:
    texts = {}
    for pattern in _READERS:
        for path in sorted(tree.root.glob(pattern)):
            name = path.relative_to(tree.root).as_posix()
            if not name.startswith(("build/", "third_party/", "torchgen/packaged/")):
                texts[name] = path.read_text(encoding="utf-8", errors="replace")
    return texts


def _read_by(name: str, texts: Mapping[str, str]) -> str:
    """The first place of the tree that mentions a variable, or the program that reads it."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    for file, text in texts.items():
        if found := word.search(text):
            return f"{file}:{text.count(chr(10), 0, found.start()) + 1}"
    if name.startswith("CMAKE_TORCHFORK_"):
        return "torchfork's source_build.cmake"
    if name.startswith("CMAKE_") or name in ("CC", "CXX"):
        return "cmake"
    if name.startswith("CCACHE_"):
        return "ccache"
    return "setuptools, gcc" if name == "SOURCE_DATE_EPOCH" else ""


def compiled_differently(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """'NAME: old → new' for each variable that decides how things are compiled."""
    names = sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
        and not name.startswith("CCACHE_")
        and name not in ("MAX_JOBS", "GEN_TO_SOURCE")
    )
    return [f"{n}: {before.get(n, '(unset)')} → {after.get(n, '(unset)')}" for n in names]


def require_space(tree: SourceTree, environment: Environment) -> str:
    """Refuse a disk that would be full before the end; a warning about memory, '' for none.

    What an earlier run of the same build has written already counts as free.
    """
    build = tree.root / "build"
    written = sum(p.stat().st_size for p in build.rglob("*") if p.is_file())
    free = shutil.disk_usage(tree.root).free
    if free + written < BYTES_NEEDED:
        raise OutputError(
            f"a build needs {BYTES_NEEDED / 1e9:.0f} GB of disk, {free / 1e9:.1f} GB are free",
            where=str(tree.root),
            next="free some space (scripts/torchfork clean), or build elsewhere: --work DIR",
        )
    jobs = int(environment.value("MAX_JOBS"))
    memory, need = toolchain.available_memory(), jobs * toolchain.TREE_JOB_BYTES
    if memory < need:
        return (
            f"{jobs} compilers at once may take {need / 1e9:.1f} GB of memory, "
            f"{memory / 1e9:.1f} GB are free: MAX_JOBS={max(1, jobs // 2)} is safer"
        )
    return ""


def require_same_settings(tree: SourceTree, environment: Environment, *, fresh: bool) -> None:
    """Refuse to resume in a build directory that other settings were used for.

    fresh: delete it instead. Objects of other settings would be linked silently.
    """
    build = tree.root / "build"
    if not build.is_dir():
        return
    known = files.read_json(build / SETTINGS)
    differing = ["its settings are not known"]
    if isinstance(known, dict):
        differing = compiled_differently(known, environment.note)
    if not differing:
        return
    if not fresh:
        raise StateError(
            "the build directory was made with other settings",
            where=str(build),
            why="\n".join(differing[:12]),
            next="set them as they were, or say --fresh to delete it and begin anew",
        )
    shutil.rmtree(build)
