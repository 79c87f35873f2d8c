"""What a build from source costs: cold, from a warm or a shared compiler cache, after an edit.

    python benchmarks/build.py --from-source [--source debian] [--parts cold,warm,edit,shared]
                               [--scratch DIR]

Each part is a whole build of PyTorch, so this takes hours on two cores; run on an idle machine.
  cold    every compiler cache is empty, and is filled
  warm    the build directory is gone, the local ccache has everything
  edit    one kernel edited, everything else as it was; wheel and verification included
  shared  a second machine: an empty cache directory, and a redis-server on loopback that the first
          build has filled (needs redis-server)
Sources and build environment are fetched before anything is measured. DIR is kept, its ccache/ too:
without cold, the other parts begin with what is in it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
BUILD = PROJECT / "scripts" / "build_torch.sh"
PARTS = ("cold", "warm", "edit", "shared")


class SourceBuild:
    """One work directory; each build of it is timed."""

    def __init__(self, scratch: Path, source: str, peak: Callable[[], object]) -> None:
        self.scratch, self.source, self.peak = scratch, source, peak
        self.additions = scratch / "additions"
        shutil.rmtree(self.additions, ignore_errors=True)
        self.additions.mkdir(parents=True)
        for name in ("native_functions_additions.yaml", "derivatives_additions.yaml"):
            shutil.copy(PROJECT / name, self.additions)
        for name in ("aten_src", "patches"):
            shutil.copytree(PROJECT / name, self.additions / name)

    def run(self, *more: str, **environment: str) -> dict[str, float]:
        """Build; seconds, CPU seconds and the peak memory of all processes in GB."""
        command = [
            str(BUILD), "--from-source", "--source", self.source,
            "--additions", str(self.additions), "--work", str(self.scratch / "work"),
            "--out", str(self.scratch / "dist"), *more,
        ]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.monotonic()
        with self.peak() as memory:  # type: ignore[attr-defined]
            done = subprocess.run(command, env=os.environ | environment)
        seconds = time.monotonic() - started
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"s": seconds, "CPU s": used, "peak memory, GB": memory.gigabytes}

    def forget(self) -> None:
        """Remove build directory and results; sources, environment and caches stay."""
        for build in (self.scratch / "work" / "source").glob("*/tree/build"):
            shutil.rmtree(build)
        for note in (self.scratch / "work").glob("tree-*/delivered.json"):
            note.unlink()

    def disk(self) -> float:
        """GB of everything that the build has written."""
        paths = self.scratch.rglob("*")
        return sum(p.stat().st_size for p in paths if p.is_file() and not p.is_symlink()) / 1e9


def measure(
    scratch: Path, source: str, parts: tuple[str, ...], peak: Callable[[], object]
) -> dict[str, float]:
    """The figures of the parts that were asked for."""
    build = SourceBuild(scratch, source, peak)
    build.run("--until", "fetch")
    caches = [scratch / "ccache", scratch / "second"]
    for cache in caches if "cold" in parts else caches[1:]:
        shutil.rmtree(cache, ignore_errors=True)
    first, second = ({"CCACHE_DIR": str(cache), "CCACHE_MAXSIZE": "20G"} for cache in caches)
    result: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        if "shared" in parts:
            remote = {"CCACHE_REMOTE_STORAGE": stack.enter_context(redis(scratch / "redis"))}
            # Resharing sends what the first machine has already, too.
            first |= {**remote, "CCACHE_RESHARE": "true"}
            second |= remote
        if "cold" in parts:
            build.forget()
            result |= _named("cold", build.run(**first))
            result["cold, disk, GB"] = build.disk()
        elif parts != ("warm",):
            result |= _named("to begin with", build.run(**first))
        if "edit" in parts:
            # The one that takes longest, in three capabilities.
            cpu = build.additions / "aten_src" / "native" / "cpu"
            kernel = cpu / "DepthwiseConv2dExtKernel.cpp"
            kernel.write_text(kernel.read_text() + "\nstatic_assert(true);\n")
            result |= _named(f"after an edit of {kernel.name}", build.run(**first))
        if "warm" in parts:
            build.forget()
            result |= _named("from a warm cache", build.run(**first))
        if "shared" in parts:
            build.forget()
            result |= _named("a second machine, from the shared cache", build.run(**second))
    return result


def _named(name: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{name}, {unit}": value for unit, value in figures.items()}


@contextlib.contextmanager
def redis(directory: Path) -> Iterator[str]:
    """A redis-server on loopback, on a free port; its address as ccache names one."""
    program = shutil.which("redis-server")
    if not program:
        sys.exit("needs redis-server (apt-get install redis-server), or leave 'shared' out")
    directory.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir"]
    running = subprocess.Popen([*command, str(directory)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"redis://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()
