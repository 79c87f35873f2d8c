"""Builds a wheel of a whole tree through its own backend, in an environment made for it.

`python -m build --wheel --no-isolation` serves both backends that releases have used. What it
prints goes to a log; on the screen is one line. When a run is interrupted or killed, its compilers
end with it, and the next run resumes there.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..additions.load import Additions
from ..errors import ForkError, ToolMissingError
from ..native import diagnostics
from ..native.compile import Pace, Progress
from ..native.diagnostics import Diagnostic, Locate
from ..upstream.base import Interpreter
from ..upstream.pins import Release
from ..upstream.tree import ATEN, SourceTree
from ..util import files, process, venv
from ..util.venv import Say
from .settings import SETTINGS, Setting

# Beyond what a tree asks for: the frontend, and the build tools that setup.py calls.
FRONTEND = ("build", "ninja", "cmake")
# CMake 4 refuses projects that ask for less than 3.5, as parts of older trees do.
POLICY = ("CMAKE_POLICY_VERSION_MINIMUM", "3.5")


@dataclass(frozen=True)
class Built:
    """A finished build."""

    wheel: Path
    steps: int  # that ninja ran in this run
    seconds: float


def build(
    tree: SourceTree,
    python: Path,
    settled: Sequence[Setting],
    out: Path,
    log: Path,
    additions: Additions,
    progress: Progress,
) -> Built:
    """Run the build to its end; the wheel as the backend made it, in `out`.

    python: of the build environment. log: gets all that is printed, after what it held before.
    Raises CompileError with the first compiler error, StateError, OutputError.
    """
    directory = tree.root / "build"
    directory.mkdir(exist_ok=True)
    files.write_json(
        directory / SETTINGS, {s.name: s.value for s in settled} | {"python": str(python)}
    )
    _reconfigure_for_new_files(tree, additions)
    _restore_license(tree)
    shutil.rmtree(out, ignore_errors=True)
    command: list[str | Path] = [
        python, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check",
        "--outdir", out, tree.root,
    ]  # fmt: skip
    started = time.monotonic()
    status, steps, start = _run(command, _environment(settled, python), tree, log, progress)
    if status:
        raise _failure(status, log, start, tree, additions, settled)
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise ForkError(f"the build left {len(wheels)} wheels", where=str(out), why=str(log))
    return Built(wheels[0], steps, time.monotonic() - started)


def _environment(settled: Sequence[Setting], python: Path) -> dict[str, str]:
    """The user's environment and the settings; programs of the build environment come first."""
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    chosen = {s.name: s.value for s in settled}
    return process.clean_environment(
        {
            **chosen,
            "PATH": path,
            "VIRTUAL_ENV": str(python.parents[1]),
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
        }
    )


def _run(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    tree: SourceTree,
    log: Path,
    progress: Progress,
) -> tuple[int, int, int]:
    """The exit status, the steps that ninja ran, and where this run's part of the log begins."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pace = Pace()
    try:
        sink = log.open("ab", buffering=0)
    except OSError as error:
        raise files.output_error(log, error) from error
    with sink:
        start = sink.tell()

        def see(line: str) -> None:
            sink.write(line.encode())
            if pace.see(line, time.monotonic()):
                progress(pace.done, pace.total, pace.line)

        status = process.stream(command, see, cwd=tree.root, env=environment)
    return status, pace.steps, start


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


_BUNDLED = "\n\nThe PyTorch repository and source distributions bundle"


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
    settled: Sequence[Setting],
) -> ForkError:
    with log.open("rb") as stream:
        stream.seek(start)
        output = stream.read().decode("utf-8", "replace")
    jobs = next((s.value for s in settled if s.name == "MAX_JOBS"), "?")
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


def make_environment(
    root: Path, interpreter: Interpreter, requirements: Sequence[str], *, hashed: bool, say: Say
) -> Path:
    """Make the environment, or take the one that is there; its interpreter.

    requirements: lines of a requirements file. hashed: whether each names the sha256 of its builds,
        and nothing else may be installed.
    Raises DownloadError, HashMismatchError, ToolMissingError.
    """
    strict = ["--require-hashes", "--no-deps", "--only-binary=:all:"] if hashed else []
    what = "the build's requirements"
    return venv.with_requirements(root, interpreter, requirements, what, say, *strict)


def requirements_of(tree: SourceTree) -> list[str]:
    """What a tree says that its build needs, and the frontend; pinned as the tree pins it."""
    for name in ("requirements-build.txt", "requirements.txt"):
        path = tree.root / name
        if path.is_file():
            lines = [line.split("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
            return [*FRONTEND, *(line for line in lines if line and not line.startswith("-"))]
    return [*FRONTEND, "setuptools", "wheel", "numpy", "pyyaml", "typing_extensions"]


def require_cmake(tree: SourceTree, python: Path) -> dict[str, str]:
    """Variables that the environment's CMake needs for this tree.

    Raises ToolMissingError for one that is older than the tree asks for.
    """
    text = (tree.root / "CMakeLists.txt").read_text(encoding="utf-8")
    asked = re.search(r"cmake_minimum_required\(\s*VERSION\s+([\d.]+)", text, re.IGNORECASE)
    program = python.with_name("cmake")
    answer = process.run([program if program.exists() else "cmake", "--version"]).stdout
    found = re.search(r"version (\d+(?:\.\d+)*)", answer)
    here = _number(found[1]) if found else (0,)
    if asked and here < _number(asked[1]):
        raise ToolMissingError(
            f"CMake {'.'.join(map(str, here))} is too old for torch {tree.version}",
            where=str(program),
            why=f"its CMakeLists.txt asks for {asked[1]}",
            next=f"pip install 'cmake>={asked[1]}' into {python.parents[1]}, or remove that "
            "directory to have it made anew",
        )
    return dict([POLICY]) if here >= (4,) else {}


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
