"""A source build, second half: a tree with the additions in it becomes a verified wheel.

`python -m build --wheel --no-isolation` serves both backends that releases have used. What it
prints goes to a log; on the screen is one line. When a run is interrupted or killed, its compilers
end with it, and the next run resumes there.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ..additions.load import Additions
from ..errors import ForkError, ToolMissingError, VerificationError
from ..native import diagnostics, toolchain
from ..native.diagnostics import Diagnostic, Locate
from ..native.ninja import Pace, Progress
from ..upstream.base import Base, Interpreter
from ..upstream.pins import PINS, Release, WheelName
from ..upstream.sources import SourceCheckout
from ..upstream.tree import ATEN, SourceTree
from ..upstream.wheel import grafted_version, read_version_file
from ..util import files, process, venv
from ..util.ui import Ui
from ..wheel import pack, repair
from . import settings
from .settings import SETTINGS, Environment, Setting
from .workdir import TreeBuildDir

SUPPORT = Path(__file__).resolve().parents[1] / "support" / "source_build.cmake"
# -O levels; which files they are for stands in source_build.cmake.
GENERATED_LEVEL = "-O1"
GLUE_LEVEL = "-Og"
DEFAULT_LEVEL = "-O1"
# Files of a release that compile as one; see ci/find_unity_groups.py.
UNITY = PINS.parent
# Beyond what a tree asks for: the frontend, and the build tools that setup.py calls.
FRONTEND = ("build", "ninja", "cmake")
_BUNDLED = "\n\nThe PyTorch repository and source distributions bundle"


@dataclass(frozen=True)
class Built:
    """The backend's wheel, and how many steps ninja ran in this run."""

    wheel: Path
    steps: int


def wheel_version(opened: SourceCheckout, number: int) -> str:
    """'2.6.0+ext1': a local part keeps what requires torch==2.6.0 satisfied."""
    return grafted_version(opened.tree.version, number)


def make_environment(
    opened: SourceCheckout, interpreter: Interpreter, release: Release | None, root: Path, ui: Ui
) -> Path:
    """The interpreter of an environment with all that the tree's build needs.

    Raises DownloadError, HashMismatchError, ToolMissingError.
    """
    require_python(opened.tree, interpreter, release)
    pinned = opened.pins.requirements if opened.pins else ()
    lines = [r.line for r in pinned] or requirements_of(opened.tree)
    # Where each requirement names the sha256 of its builds, nothing else may be installed.
    strict = ["--require-hashes", "--no-deps", "--only-binary=:all:"] if pinned else []
    key = files.sha256_text(str(interpreter.executable), interpreter.version, *lines)[:12]
    place = root / f"env-{interpreter.tag}-{key}"
    with ui.step("make the build environment") as step:
        python = venv.with_requirements(
            place, interpreter, lines, "the build's requirements", step.show, *strict
        )
        step.say(f"{len(lines)} packages" + (", sha256 as pinned" if pinned else ""))
    return python


def require_python(tree: SourceTree, interpreter: Interpreter, release: Release | None) -> None:
    """Refuse an interpreter that the release was never built for."""
    if release is None:
        return
    tags = sorted({pin.name.python for pin in release.wheels}, key=lambda tag: int(tag[2:]))
    if not tags or interpreter.tag in tags:
        return
    number = int(interpreter.tag[2:])
    state = "old" if number < int(tags[0][2:]) else "new"
    raise ToolMissingError(
        f"Python {interpreter.version} is too {state} for torch {tree.version}",
        where=str(interpreter.executable),
        why=f"the release was made for {', '.join(tags)}",
        next="give one of these with --python, or another release with --torch",
    )


def requirements_of(tree: SourceTree) -> list[str]:
    """What a tree says that its build needs, and the frontend; pinned as the tree pins it."""
    for name in ("requirements-build.txt", "requirements.txt"):
        path = tree.root / name
        if path.is_file():
            lines = [line.split("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
            return [*FRONTEND, *(line for line in lines if line and not line.startswith("-"))]
    return [*FRONTEND, "setuptools", "wheel", "numpy", "pyyaml", "typing_extensions"]


def resolve_settings(
    opened: SourceCheckout, python: Path | None, version: str | None
) -> tuple[Setting, ...]:
    """Every variable of the build, where its value comes from and what reads it."""
    prefixes: list[Path] = []
    if python:
        prefixes.append(python.parents[1])
        # Where a wheel of pybind11 keeps what find_package looks for.
        prefixes += sorted(python.parents[1].glob("lib/python*/site-packages/pybind11"))
    if opened.prefix:
        prefixes.append(opened.prefix / "usr")
    source = [
        Setting(option.name, option.value.format(prefix=opened.prefix), "source", option.reason)
        for option in (opened.pins.options if opened.pins else ())
    ]
    source += [
        Setting("CMAKE_PROJECT_Torch_INCLUDE", str(SUPPORT), "default", "the settings below"),
        *_tuning(opened),
    ]
    if python:
        for name, value in require_cmake(opened.tree, python).items():
            reason = "CMake 4 refuses parts of older trees"
            source.append(Setting(name, value, "machine", reason))
    return settings.defaults(
        opened.tree, version=version, prefixes=prefixes, environment=os.environ, source=source,
        epoch=pack.epoch_from(),
    )  # fmt: skip


def _tuning(opened: SourceCheckout) -> list[Setting]:
    """What saves compile time; an empty value of the user's own takes each of them back."""
    found = [
        Setting("CMAKE_TORCHFORK_GENERATED", GENERATED_LEVEL, "default",
                "generated code compiles faster, no kernel runs slower"),
        Setting("CMAKE_TORCHFORK_GLUE", GLUE_LEVEL, "default",
                "so does what runs once a program or once a graph"),
        Setting("CMAKE_TORCHFORK_DEFAULT", DEFAULT_LEVEL, "default",
                "kernels that only processors without AVX2 run"),
        Setting("CMAKE_TORCHFORK_HEAP", str(toolchain.GCC_HEAP_KB), "default",
                "GCC collects its garbage less often, for a quarter more memory"),
    ]  # fmt: skip
    groups = UNITY / f"unity-{opened.tree.version}.txt"
    if groups.is_file():
        found.append(
            Setting("CMAKE_TORCHFORK_UNITY", str(groups), "default",
                    "small files that parse the same headers compile as one")
        )  # fmt: skip
    return found


def require_cmake(tree: SourceTree, python: Path) -> dict[str, str]:
    """Variables that the environment's CMake needs for this tree.

    Raises ToolMissingError for one that is older than the tree asks for.
    """
    text = (tree.root / "CMakeLists.txt").read_text(encoding="utf-8")
    asked = re.search(r"cmake_minimum_required\(\s*VERSION\s+([\d.]+)", text, re.IGNORECASE)
    program = python.with_name("cmake")
    answer = process.run([program if program.exists() else "cmake", "--version"]).stdout
    found = re.search(r"version (\d+(?:\.\d+)*)", answer)
    here = Version(found[1] if found else "0")
    if asked and here < Version(asked[1]):
        raise ToolMissingError(
            f"CMake {here} is too old for torch {tree.version}",
            where=str(program),
            why=f"its CMakeLists.txt asks for {asked[1]}",
            next=f"pip install 'cmake>={asked[1]}' into {python.parents[1]}, or remove that "
            "directory to have it made anew",
        )
    # CMake 4 refuses projects that ask for less than 3.5, as parts of older trees do.
    return {"CMAKE_POLICY_VERSION_MINIMUM": "3.5"} if here.major >= 4 else {}


def build(
    opened: SourceCheckout,
    environment: Environment,
    additions: Additions,
    layout: TreeBuildDir,
    *,
    fresh: bool,
    ui: Ui,
) -> Built:
    """Configure, compile and make the backend's wheel; minutes to hours."""
    settings.require_same_settings(opened.tree, environment, fresh=fresh)
    warning = settings.require_space(opened.tree, environment)
    if warning:
        ui.warn(warning)
    log = layout.root / "build.log"
    ui.note(f"    all output goes to {log}")
    with ui.step("build all of PyTorch") as step:
        built = run_backend(
            opened.tree, environment, layout.root / "raw", log, additions, step.advance
        )
        step.say(f"{built.steps} steps, {environment.value('MAX_JOBS')} at once")
    return built


def run_backend(
    tree: SourceTree,
    environment: Environment,
    out: Path,
    log: Path,
    additions: Additions,
    progress: Progress,
) -> Built:
    """Run the build to its end; the wheel as the backend made it, in `out`.

    log: gets all that is printed, after what it held before.
    Raises CompileError with the first compiler error, StateError, OutputError.
    """
    directory = tree.root / "build"
    directory.mkdir(exist_ok=True)
    files.write_json(directory / SETTINGS, environment.note)
    _reconfigure_for_new_files(tree, additions)
    _restore_license(tree)
    shutil.rmtree(out, ignore_errors=True)
    command: list[str | Path] = [
        environment.python, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check",
        "--outdir", out, tree.root,
    ]  # fmt: skip
    start = log.stat().st_size if log.is_file() else 0
    status, steps = _logged(command, _variables(environment), tree, log, progress)
    if status:
        raise _failure(status, log, start, tree, additions, environment)
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise ForkError(
            f"the build left {len(wheels)} wheels where one is expected", where=str(out),
            next=f"read {log}; --fresh begins the build anew",
        )  # fmt: skip
    return Built(wheels[0], steps)


def _variables(environment: Environment) -> dict[str, str]:
    """The user's environment and the settings; programs of the build environment come first."""
    programs = environment.python.parent
    return process.clean_environment(
        {
            **environment.values,
            "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(programs.parent),
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
        }
    )


def _logged(
    command: Sequence[str | Path],
    variables: Mapping[str, str],
    tree: SourceTree,
    log: Path,
    progress: Progress,
) -> tuple[int, int]:
    """The exit status, and the steps that ninja ran."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pace = Pace()
    try:
        sink = log.open("ab", buffering=0)
    except OSError as error:
        raise files.output_error(log, error) from error
    with sink:

        def see(line: str) -> None:
            sink.write(line.encode())
            if pace.see(line, time.monotonic()):
                progress(pace.done, pace.total, pace.line)

        status = process.stream(command, see, cwd=tree.root, env=variables)
    return status, pace.steps


def _reconfigure_for_new_files(tree: SourceTree, additions: Additions) -> None:
    """Kernels are found by globs, which CMake looks at only when it runs.

    The names of ours are kept beside the build; where they are others now, CMake is made to run.
    """
    note = tree.root / "build" / "torchfork-sources.txt"
    names = "".join(f"{path.relative_to(additions.source_root)}\n" for path in additions.sources)
    known = note.read_text(encoding="utf-8") if note.is_file() else None
    cache = tree.root / "build" / "CMakeCache.txt"
    if known != names and cache.is_file():
        os.utime(cache)  # build.ninja depends on it
    files.write_text(note, names)


def _restore_license(tree: SourceTree) -> None:
    """setup.py appends to LICENSE while it packs; one that was killed there left it so."""
    path = tree.root / "LICENSE"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if _BUNDLED in text:
        files.write_text(path, text.partition(_BUNDLED)[0])


def _failure(
    status: int,
    log: Path,
    start: int,
    tree: SourceTree,
    additions: Additions,
    environment: Environment,
) -> ForkError:
    with log.open("rb") as stream:
        stream.seek(start)
        output = stream.read().decode("utf-8", "replace")
    jobs = environment.value("MAX_JOBS")
    error = diagnostics.failure(output, log, jobs, _in_additions(tree, additions))
    if missing := re.search(r"fatal error: (\S+): No such file or directory", error.why):
        return ToolMissingError(
            f"the compiler misses the header {missing[1]}",
            where=error.where,
            why=error.why,
            next="install the development package that has it, or correct the #include; then run "
            f"the same command again. Full log: {log}",
        )
    error.why = error.why or f"exit status {status}"
    return error


def _in_additions(tree: SourceTree, additions: Additions) -> Locate:
    """Finds the kernel of the additions that was copied into the tree."""
    prefix = f"{tree.root / ATEN}/"

    def locate(diagnostic: Diagnostic) -> str:
        original = additions.source_root / diagnostic.file.removeprefix(prefix)
        if diagnostic.file.startswith(prefix) and original in additions.sources:
            return f"{original}:{diagnostic.line}"
        return ""

    return locate


def finish(
    opened: SourceCheckout,
    built: Built,
    environment: Environment,
    interpreter: Interpreter,
    layout: TreeBuildDir,
    out: Path,
    ui: Ui,
) -> tuple[Path, Base]:
    """Bundle libraries, take the build's paths out, and pack reproducibly."""
    with ui.step("bundle and pack") as step:
        unpacked = layout.root / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        with zipfile.ZipFile(built.wheel) as archive:
            archive.extractall(unpacked)
        overlay = layout.root / "overlay"
        compiler = environment.value("CXX") or toolchain.find_cxx(os.environ)
        added = repair.complete(unpacked, overlay, _library_directories(opened), compiler)
        base = _as_base(built.wheel, unpacked, interpreter, overlay)
        _check_version(base, environment.value("PYTORCH_BUILD_VERSION"))
        epoch = int(environment.value("SOURCE_DATE_EPOCH"))
        wheel = pack.pack(base, overlay, base.version, out, epoch)
        shutil.rmtree(unpacked)
        step.say(f"{wheel.stat().st_size / 1e6:.1f} MB, with {', '.join(added) or 'no libraries'}")
    return wheel, base


def _library_directories(opened: SourceCheckout) -> list[Path]:
    if not opened.prefix:
        return []
    usr = opened.prefix / "usr" / "lib"
    return [usr, *sorted(path for path in usr.glob("*-linux-gnu*") if path.is_dir())]


def _as_base(wheel: Path, unpacked: Path, interpreter: Interpreter, overlay: Path) -> Base:
    """The backend's wheel as the packer and the verification know one."""
    version = read_version_file(
        (unpacked / "torch" / "version.py").read_text(encoding="utf-8"), "torch/version.py"
    )
    dist_info = next(path.name for path in unpacked.glob("torch-*.dist-info"))
    tag = _platform_tag(WheelName.parse(wheel.name).tag, unpacked, overlay)
    return Base(
        root=unpacked,
        version=version.version,
        git_version=version.git_version,
        cuda=version.cuda,
        dist_info=dist_info,
        wheel_tag=tag,
        wheel=wheel,
        identity=files.sha256_file(wheel),
        interpreter=interpreter,
    )


def _platform_tag(wheel_tag: str, *roots: Path) -> str:
    """The wheel's tag with the oldest glibc that all of its libraries load on."""
    head, _, system = wheel_tag.rpartition("-")
    if not system.startswith("linux_"):
        return wheel_tag
    major, minor = repair.needed_glibc(path for r in roots for path in repair.elf_files(r))
    return f"{head}-manylinux_{major}_{minor}_{system.removeprefix('linux_')}"


def _check_version(base: Base, wanted: str) -> None:
    """The wheel's own torch.__version__ is the one that was asked for."""
    if base.version != wanted:
        raise VerificationError(
            f"the build called itself {base.version}, not {wanted}",
            where="torch/version.py",
            why="PYTORCH_BUILD_VERSION or PYTORCH_BUILD_NUMBER says otherwise",
            next="unset them, or set both as you want the version to be",
        )
