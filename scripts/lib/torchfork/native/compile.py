"""Has ninja compile a graft, shows how far it is, and finds the telling part of a failure."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ninja

from ..additions.load import Additions
from ..errors import CompileError, ForkError
from ..util import process
from ..util.files import DISK_FULL, output_error, write_if_changed
from .complaints import formula_of
from .toolchain import Toolchain
from .units import ADDITIONS_LINK

Progress = Callable[[int, int, str], None]


def link_additions(additions: Additions, directory: Path) -> None:
    """Make <ATen/native/X.h> find the additions' own headers: a folder with a link ATen."""
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "ATen"
    if not (link.is_symlink() and link.readlink() == additions.source_root):
        link.unlink(missing_ok=True)
        link.symlink_to(additions.source_root)


def copy_support(source: Path, target: Path) -> None:
    """Bring the hand-written C++ into the build directory."""
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        write_if_changed(target / path.relative_to(source), path.read_bytes())


def compile_all(
    text: str, build: Path, toolchain: Toolchain, additions: Additions, progress: Progress
) -> int:
    """Run ninja; the number of objects that were compiled. Raises CompileError."""
    build.mkdir(parents=True, exist_ok=True)
    write_if_changed(build / "build.ninja", text)
    program = Path(ninja.BIN_DIR) / "ninja"
    command = [str(program), "-C", str(build), f"-j{toolchain.jobs}", "-k1"]
    environment = process.clean_environment({"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"})
    compiled, lines = 0, []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, errors="replace", preexec_fn=_dying_with_us(),
    ) as running:  # fmt: skip
        assert running.stdout is not None
        try:
            for line in running.stdout:
                lines.append(line)
                if found := re.match(r"\[(\d+)/(\d+)\] (.*)", line):
                    compiled = int(found[1])
                    progress(compiled, int(found[2]), Path(found[3]).name)
        except BaseException:
            running.send_signal(signal.SIGINT)
            raise
    (build / "compile.log").write_text("".join(lines), encoding="utf-8")
    if running.returncode:
        shown = "".join(lines).replace(ADDITIONS_LINK, str(additions.source_root))
        raise failure(shown, build / "compile.log", toolchain, additions)
    return compiled


def _dying_with_us() -> Callable[[], None] | None:
    """Has the kernel interrupt ninja when this process is killed, where there is such a kernel.

    Else compilers of the killed run would go on writing objects beside those of the next one.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    return lambda: prctl(parent_death_signal, signal.SIGINT)


def failure(output: str, log: Path, toolchain: Toolchain, additions: Additions) -> ForkError:
    """The first compiler error of a failed run, without ninja's and the include stack's noise."""
    if DISK_FULL in output:
        return output_error(log.parent, OSError(errno.ENOSPC, DISK_FULL))
    if re.search(r"(Killed|fatal error: Killed signal|signal terminated program cc1plus)", output):
        return CompileError(
            "the compiler was killed",
            where=str(log),
            why="most likely out of memory; "
            f"{toolchain.jobs} ran at once on a machine with {os.cpu_count()} cores",
            next="run the same command again with MAX_JOBS=1",
        )
    found = re.search(r"^(\S.*?)[:(](\d+)[:)].*?\berror\b[: ]", output, re.MULTILINE)
    start = found.start() if found else 0
    telling = "\n".join(output[start:].splitlines()[:15])
    formula = formula_of(output[:start], telling, additions)
    return CompileError(
        "a derivative formula does not compile" if formula else "a file does not compile",
        where=formula or (f"{found[1]}:{found[2]}" if found else str(log)),
        why=telling,
        next=f"correct it and run the same command again; everything else is kept. Full log: {log}",
    )
