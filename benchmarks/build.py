"""What a graft costs: first command, edit loop, second run, memory, many additions, call overhead.

    python benchmarks/build.py [--quick] [--json FILE]
    python benchmarks/build.py --from-source ...      see source_build.py

Run on an idle machine; what is measured is what is committed. The first command is that of a fresh
clone with nothing in HOME, and is shown step by step and with the objects that took longest; what
is downloaded in the step "fetch the official wheel" is left out of its sum. Compiler caches are
switched off. Ratios are taken within this run.
--quick leaves out the 100 generated additions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import source_build

PROJECT = Path(__file__).resolve().parents[1]
GENERATED_OPERATORS = 100
FETCH = "step: fetch the official wheel"

IMPORT_PROBE = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
CALL_PROBE = """
import statistics, timeit, torch
x = torch.ones(64)
def once(f):
    return min(timeit.repeat(lambda: f(x), number=20000, repeat=3))
pairs = [(once(torch.gdh), once(torch.ravel)) for _ in range(15)]
print(statistics.median(ours / theirs for ours, theirs in pairs))
"""


def run(
    *arguments: str | Path, env: dict[str, str] | None = None, project: Path = PROJECT
) -> tuple[float, str]:
    """Seconds and stderr of a build."""
    uncached = {"CMAKE_CXX_COMPILER_LAUNCHER": "", "CCACHE_DISABLE": "1"}
    command = [str(project / "scripts" / "build_torch.sh"), *map(str, arguments)]
    started = time.monotonic()
    done = subprocess.run(
        command, env=os.environ | uncached | (env or {}), capture_output=True, text=True
    )
    seconds = time.monotonic() - started
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return seconds, done.stderr


def steps(log: str) -> dict[str, float]:
    """Seconds of each step that a build printed."""
    return {
        name.strip(): float(seconds)
        for name, seconds in re.findall(r"^ *\d+\. (.*?) +([\d.]+) s  ", log, re.MULTILINE)
    }


class PeakMemory:
    """The largest sum of the resident sizes of all descendants while it is entered, in GB.

    Sampled five times a second. Pages that processes share are counted once for each of them, so
    the figure is an upper bound.
    """

    def __enter__(self) -> PeakMemory:
        self.gigabytes = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._stop.wait(0.2):
            children: dict[int, list[tuple[int, int]]] = {}
            for status in Path("/proc").glob("[0-9]*/stat"):
                try:
                    fields = status.read_text().rpartition(")")[2].split()
                except OSError:  # the process has ended
                    continue
                pid, parent, resident = int(status.parent.name), int(fields[1]), int(fields[21])
                children.setdefault(parent, []).append((pid, resident * page))
            total, waiting = 0, [os.getpid()]
            while waiting:
                for pid, size in children.get(waiting.pop(), []):
                    total += size
                    waiting.append(pid)
            self.gigabytes = max(self.gigabytes, total / 1e9)


def many_additions(target: Path) -> None:
    """Write GENERATED_OPERATORS small differentiable operators with kernels."""
    native, derivatives, kernels = [], [], []
    for index in range(GENERATED_OPERATORS):
        name = f"bench_generated_{index}"
        native.append(
            f"- func: {name}(Tensor self, Scalar alpha=1) -> Tensor\n"
            "  variants: function, method\n"
            f"  dispatch:\n    CompositeExplicitAutograd: {name}\n  autogen: {name}.out\n"
        )
        derivatives.append(
            f"- name: {name}(Tensor self, Scalar alpha=1) -> Tensor\n  self: grad * alpha\n"
        )
        kernels.append(
            f"Tensor {name}(const Tensor& self, const Scalar& alpha) {{\n"
            "  return at::mul(self, alpha);\n}"
        )
    includes = "\n".join(
        f"#include <ATen/ops/bench_generated_{i}_native.h>" for i in range(GENERATED_OPERATORS)
    )
    source = target / "aten_src" / "native"
    source.mkdir(parents=True)
    (target / "native_functions_additions.yaml").write_text("\n".join(native))
    (target / "derivatives_additions.yaml").write_text("\n".join(derivatives))
    (source / "Generated.cpp").write_text(
        f"#include <ATen/core/Tensor.h>\n#include <ATen/ops/mul.h>\n{includes}\n"
        "namespace at::native {\n" + "\n".join(kernels) + "\n}\n"
    )


def cpu_seconds() -> float:
    """CPU time of all finished descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_first(scratch: Path) -> dict[str, float]:
    """The first command of a fresh clone in a clean environment, and an identical second run."""
    clone, home = scratch / "clone", scratch / "home"
    subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(clone)], check=True)
    home.mkdir()
    clean = {"HOME": str(home), "XDG_CACHE_HOME": "", "TORCHFORK_CACHE": ""}
    before = cpu_seconds()
    with PeakMemory() as memory:
        seconds, log = run(env=clean, project=clone)
    taken = {f"step: {name}": value for name, value in steps(log).items()}
    result = {"step: set up the tools": seconds - sum(taken.values())} | taken
    for name, value in longest_objects(clone):
        result[f"object: {name}"] = value
    result["first command without the download, s"] = seconds - taken[FETCH]
    result["first command, CPU s"] = cpu_seconds() - before
    result["peak memory of all processes, GB"] = memory.gigabytes
    result["second identical run, s"], _ = run(env=clean, project=clone)
    return result


def longest_objects(project: Path, count: int = 10) -> list[tuple[str, float]]:
    """Seconds of the objects that took longest, by ninja's log (milliseconds from start to end)."""
    log = next((project / ".torchfork" / "build").glob("*/build/.ninja_log"))
    lines = [line.split("\t") for line in log.read_text().splitlines() if line[0] != "#"]
    times = [(line[3], (int(line[1]) - int(line[0])) / 1000) for line in lines]
    return sorted(times, key=lambda item: -item[1])[:count]


def measure_edit_loop(scratch: Path) -> dict[str, float]:
    """--develop into a fresh environment, a kernel edited, --develop again, import."""
    wheel = next((scratch / "clone" / "dist").glob("*.whl"))
    base = next(iter(re.findall(r"torch-([^+-]+)", wheel.name)))
    environment, additions = scratch / "env", scratch / "additions"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", f"torch=={base}"], check=True)
    additions.mkdir()
    for name in ("native_functions_additions.yaml", "derivatives_additions.yaml"):
        shutil.copy(PROJECT / name, additions)
    for directory in ("aten_src", "patches"):
        shutil.copytree(PROJECT / directory, additions / directory)
    options: tuple[str | Path, ...] = ("--additions", additions, "--develop", "--python", python)
    options += ("--work", scratch / "develop")
    run(*options)
    result = {}
    for kernel in sorted((additions / "aten_src" / "native").rglob("*.cpp")):
        kernel.write_text(kernel.read_text() + "\n// edited\nstatic_assert(true);\n")
        seconds, _ = run(*options)
        imported = subprocess.run([python, "-c", "import torch"], cwd=scratch)
        imported.check_returncode()
        result[f"edit {kernel.name}, develop, s"] = seconds
    return result


def measure_overhead(scratch: Path) -> dict[str, float]:
    """Import time and call overhead, the grafted against the original torch, alternating."""
    wheel = next((scratch / "clone" / "dist").glob("*.whl"))
    pythons = {}
    version = re.findall(r"torch-([^+-]+)", wheel.name)[0]
    for name, requirement in (("ours", str(wheel)), ("base", f"torch=={version}")):
        environment = scratch / f"import-{name}"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pythons[name] = environment / "bin" / "python"
        subprocess.run([pythons[name], "-m", "pip", "install", "-q", requirement], check=True)

    def probe(name: str, code: str) -> float:
        told = subprocess.run(
            [pythons[name], "-W", "ignore", "-c", code],
            cwd=scratch, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return float(told.stdout)

    for name in pythons:
        probe(name, IMPORT_PROBE)  # warms the page cache and writes bytecode
    times = [(probe("ours", IMPORT_PROBE), probe("base", IMPORT_PROBE)) for _ in range(11)]
    return {
        "import, ours / base": statistics.median(ours / base for ours, base in times),
        "call, torch.gdh / torch.ravel": probe("ours", CALL_PROBE),
    }


def measure_many(scratch: Path, compile_seconds: float) -> dict[str, float]:
    """100 generated additions against our own."""
    many_additions(scratch / "many")
    seconds, log = run(
        "--additions", scratch / "many", "--work", scratch / "many-work",
        "--out", scratch / "many-dist",
    )  # fmt: skip
    return {
        f"{GENERATED_OPERATORS} additions, s": seconds,
        f"{GENERATED_OPERATORS} additions, compile / ours": steps(log)["compile"] / compile_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="no build of many additions")
    parser.add_argument("--json", type=Path, help="write every figure here")
    whole = parser.add_argument_group("whole builds (source_build.py says what is measured)")
    whole.add_argument("--from-source", action="store_true", help="these instead: hours")
    whole.add_argument("--source", default="debian", help="as of build_torch.sh")
    whole.add_argument(
        "--parts", default=",".join(source_build.PARTS), help="some of cold,warm,edit,shared"
    )
    whole.add_argument("--scratch", type=Path, help="a directory to keep")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="torchfork-benchmark-"))
    try:
        if options.from_source:
            parts = tuple(options.parts.split(","))
            place = (options.scratch or scratch).absolute()
            result = source_build.measure(place, options.source, parts, PeakMemory)
            show(result, options.json)
            return
        result = measure_first(scratch)
        result |= measure_edit_loop(scratch)
        result |= measure_overhead(scratch)
        if not options.quick:
            result |= measure_many(scratch, result["step: compile"])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    show(result, options.json)


def show(result: dict[str, float], target: Path | None) -> None:
    """Print the figures, and write them where asked."""
    for name, value in result.items():
        print(f"{name:<60} {value:8.2f}")
    if target:
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
