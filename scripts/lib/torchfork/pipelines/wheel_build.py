"""Builds a wheel of a whole tree through its own backend, however long that takes.

`python -m build --wheel --no-isolation` serves both backends that releases have used. What it
prints goes to a log; on the screen stands one line. A run that is interrupted or killed takes its
compilers with it, and the next one goes on from there.
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
from ..upstream.tree import ATEN, SourceTree
from ..util import files, process
from .settings import SETTINGS, Setting


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
