"""Finds the compilers and says how many of them to run at once."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ToolkitMismatchError, ToolMissingError, UsageError
from ..upstream.abi import Capabilities, find_capabilities
from ..upstream.base import Base
from ..upstream.binaries import search
from ..util import process

# What ATen/cuda/CUDAContext.h, which every generated CUDA registration includes, needs.
CUDA_HEADERS = ("cuda_runtime.h", "cublas_v2.h", "cusparse.h", "cusolverDn.h")

# Peak memory of the heaviest file, measured with GCC 12. Of a graft: 1.3 GB generated, which half
# of the jobs may be at once, 1.1 GB other C++, 1.6 GB CUDA.
# Of a whole tree for CPUs: 2.1 GB, and a quarter more with fewer garbage collections. With CUDA:
# about 5 GB for nvcc on attention kernels.
GRAFT_JOB_BYTES = 1_600_000_000
TREE_JOB_BYTES = 2_700_000_000
TREE_CUDA_JOB_BYTES = 5_000_000_000
# GCC collects garbage each time that its heap has doubled beyond 128 MB. For a file that includes
# much of ATen that was 13 % of its time (Functions.cpp, GCC 12: 10.9 s and 0.92 GB; 9.4 s and
# 1.17 GB in builds of a whole tree). A graft's united autograd files take as long with a heap of
# 500 MB that grows by 60 % (23 s) and 1.3 GB instead of 1.7. No object changes.
GCC_HEAP_KB = 700_000  # of a whole tree
FEWER_COLLECTIONS = ("--param=ggc-min-expand=60", "--param=ggc-min-heapsize=500000")


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit and the architectures to compile for."""

    nvcc: Path
    version: str
    include: tuple[Path, ...]
    gencode: tuple[str, ...]
    chosen: str = ""  # the architectures and why these, for the user


@dataclass(frozen=True)
class Toolchain:
    """The compilers of a build."""

    cxx: str
    launcher: str  # ccache, sccache or ''
    jobs: int
    capabilities: Capabilities
    cuda: Cuda | None
    cuda_note: str  # why CUDA is left out, for the user

    @property
    def tuning(self) -> tuple[str, ...]:
        """Flags that save time and change no object. Asks the compiler, hence only when needed."""
        return find_tuning(self.cxx)


def available_memory() -> int:
    """Bytes that programs can still take without swapping; enough for one job where unknown."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found = re.search(r"MemAvailable:\s+(\d+) kB", text)
        return int(found[1]) * 1024 if found else GRAFT_JOB_BYTES
    except OSError:
        return GRAFT_JOB_BYTES


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def job_count(env: Mapping[str, str], job_bytes: int) -> int:
    """MAX_JOBS, else as many as cores and memory carry. job_bytes: what one compiler may take."""
    wanted = env.get("MAX_JOBS", "")
    if wanted:
        if not re.fullmatch(r"0*[1-9][0-9]{0,5}", wanted):
            raise UsageError(
                f"MAX_JOBS is '{wanted}', not a number of jobs",
                next="set it to 1 or more, or unset it",
            )
        return int(wanted)
    return max(1, min(cores(), int(0.8 * available_memory() / job_bytes)))


def find_cxx(env: Mapping[str, str]) -> str:
    """CXX, else g++, else c++; clang++ is not looked for because libtorch is built with GCC."""
    chosen = env.get("CXX") or next((c for c in ("g++", "c++") if shutil.which(c)), "")
    if chosen and not chosen.strip():
        raise UsageError("CXX is blank", next="name a compiler with it, or unset it")
    if not chosen or not shutil.which(chosen.split()[0]):
        raise ToolMissingError(
            f"no C++ compiler: '{chosen}' is not there" if chosen else "no C++ compiler",
            why="the graft compiles the added kernels",
            next="apt-get install g++ (GCC 11 or later), or name one with CXX=/path/to/g++",
        )
    return chosen


def find_tuning(cxx: str) -> tuple[str, ...]:
    """FEWER_COLLECTIONS where the compiler knows them."""
    command: list[str | Path] = [*cxx.split(), *FEWER_COLLECTIONS, "-E", "-x", "c++", os.devnull]
    return () if process.run(command, check=False).returncode else FEWER_COLLECTIONS


def require_working(tools: Toolchain, standard: str) -> None:
    """Raise ToolMissingError where the compiler, through its launcher, compiles no empty file.

    standard: of C++, as the release needs it.
    """
    launched = [*tools.launcher.split(), *tools.cxx.split()]
    command: list[str | Path] = [*launched, f"-std={standard}", "-fsyntax-only", "-x", "c++", "-"]
    tried = process.run(command, check=False, input_text="")
    if tried.returncode:
        raise ToolMissingError(
            f"the C++ compiler does not work: {' '.join(launched)}",
            why=f"asked for {standard}, it says: {tried.stderr.strip()[:500]}",
            next="apt-get install g++ (GCC 11 or later), or name one with CXX=/path/to/g++; "
            "CMAKE_CXX_COMPILER_LAUNCHER= leaves ccache out",
        )


def find_launcher(env: Mapping[str, str]) -> str:
    """The compiler launcher: as CMake users set it, else ccache or sccache where present."""
    if "CMAKE_CXX_COMPILER_LAUNCHER" in env:
        return env["CMAKE_CXX_COMPILER_LAUNCHER"]
    return next((tool for tool in ("ccache", "sccache") if shutil.which(tool)), "")


def architecture_flags(listed: str, *, shared: bool = False) -> list[str]:
    """nvcc's flags for a TORCH_CUDA_ARCH_LIST such as '8.0 9.0a+PTX' or '8.0;9.0'.

    shared: 8.6 is assembled from the PTX of 8.0 where both are listed, and so is every later minor
    version. Most of nvcc's time is what makes PTX. A kernel sees __CUDA_ARCH__ as 800 in both.

    Raises UsageError where an item is no architecture.
    """
    flags = []
    firsts: dict[str, str] = {}
    for item in filter(None, re.split(r"[;,\s]+", listed)):
        found = re.fullmatch(r"(\d+)\.(\d[af]?)(\+PTX)?", item)
        if not found:
            raise UsageError(
                f"TORCH_CUDA_ARCH_LIST holds '{item}', which is no architecture",
                next="write it as in TORCH_CUDA_ARCH_LIST='8.0 9.0+PTX'",
            )
        number = found[1] + found[2]
        first = firsts.setdefault(found[1], number)
        fits = shared and first.isdigit() and number.isdigit() and first < number
        flags.append(f"-gencode=arch=compute_{first if fits else number},code=sm_{number}")
        if found[3]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def base_architectures(base: Base) -> str:
    """The architectures that the base was built for, as a TORCH_CUDA_ARCH_LIST.

    Read off the text in libtorch_python.so that torch.cuda.get_arch_list() splits, so that
    nothing is imported.
    """
    found = search(base.library("torch_python"), rb"((?:(?:sm|compute)_\d+[af]? ?){2,})")
    names = max(found, key=len, default=b"").decode().split()
    ptx = {n.removeprefix("compute_") for n in names if n.startswith("compute_")}
    cubins = [n.removeprefix("sm_") for n in names if n.startswith("sm_")]
    return " ".join(
        re.sub(r"(\d[af]?)$", r".\1", number) + ("+PTX" if number in ptx else "")
        for number in dict.fromkeys(cubins)
    )


def visible_architectures() -> str:
    """Those of the GPUs that nvidia-smi lists, as a TORCH_CUDA_ARCH_LIST; '' without any."""
    if not shutil.which("nvidia-smi"):
        return ""
    command: list[str | Path] = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    listed = process.run(command, check=False).stdout
    return " ".join(sorted(set(re.findall(r"^\d+\.\d$", listed, re.MULTILINE)), key=float))


def _architectures(base: Base, env: Mapping[str, str], *, visible: bool) -> tuple[str, str, bool]:
    """What to compile for, as a TORCH_CUDA_ARCH_LIST, why, and whether PTX may be shared."""
    if listed := env.get("TORCH_CUDA_ARCH_LIST"):
        return listed, "TORCH_CUDA_ARCH_LIST", False
    if visible and (listed := visible_architectures()):
        return listed, "the GPUs here", False
    return base_architectures(base), "those of the base", True


def find_cuda(
    base: Base, env: Mapping[str, str], *, visible: bool = False
) -> tuple[Cuda | None, str]:
    """The toolkit for a CUDA base, or None and the reason. `visible`: for the GPUs here alone.

    Raises ToolkitMismatchError for another major version than the base's, ToolMissingError where a
    CUDA base has no toolkit and USE_CUDA does not say to leave CUDA out.
    """
    if base.cuda is None:
        return None, "the base is a CPU build"
    if env.get("USE_CUDA", "1").upper() in {"0", "OFF", "NO", "FALSE"}:
        return None, "USE_CUDA=0: kernels for CUDA are left out"
    nvcc = _find_nvcc(env)
    text = process.run([nvcc, "--version"]).stdout
    found = re.search(r"release (\d+)\.(\d+)", text)
    version = f"{found[1]}.{found[2]}" if found else "unknown"
    if version.split(".")[0] != base.cuda.split(".")[0]:
        raise ToolkitMismatchError(
            f"the CUDA toolkit is {version}, torch {base.version} was built with CUDA {base.cuda}",
            where=str(nvcc),
            why="their major versions differ, so kernels would not fit torch's CUDA runtime",
            next=f"name a CUDA {base.cuda.split('.')[0]} toolkit with CUDA_HOME=/path, or leave "
            "CUDA out with USE_CUDA=0",
        )
    include = (_toolkit_root(nvcc) / "include", *_package_includes(base))
    _require_headers(base, include)
    listed, why, shared = _architectures(base, env, visible=visible)
    flags = tuple(architecture_flags(listed, shared=shared))
    return Cuda(nvcc, version, include, flags, f"{listed} ({why})"), ""


def _find_nvcc(env: Mapping[str, str]) -> Path:
    home = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    named = Path(home, "bin", "nvcc") if home else None
    on_path = shutil.which("nvcc")
    candidates = [
        named,
        Path(on_path).resolve() if on_path else None,
        Path("/usr/local/cuda/bin/nvcc"),
    ]
    for candidate in candidates[:1] if named else candidates:
        if candidate and candidate.is_file():
            return candidate
    raise ToolMissingError(
        "this torch is a CUDA build and there is no CUDA compiler (nvcc)",
        where=str(named or "PATH, CUDA_HOME, /usr/local/cuda"),
        why="the kernels in aten_src/**/cuda/*.cu need it",
        next="install the CUDA toolkit or set CUDA_HOME=/path; or leave CUDA out with USE_CUDA=0",
    )


def _toolkit_root(nvcc: Path) -> Path:
    """The toolkit that an nvcc belongs to, by its own word: a program on PATH may be a wrapper."""
    with tempfile.TemporaryDirectory() as directory:
        empty = Path(directory, "empty.cu")
        empty.touch()
        answer = process.run([nvcc, "--dryrun", "-c", empty], cwd=empty.parent, check=False).stderr
    found = re.search(r"^#\$ TOP=(.+)$", answer, re.MULTILINE)
    return Path(found[1].strip()).resolve() if found else nvcc.parents[1]


def _require_headers(base: Base, include: Sequence[Path]) -> None:
    """Refuse a toolkit without the headers that ATen's own CUDA headers include."""
    for name in CUDA_HEADERS:
        if not any((directory / name).is_file() for directory in include):
            raise ToolMissingError(
                f"the CUDA toolkit has no {name}",
                where=", ".join(map(str, include)),
                why="torch's CUDA headers include it; the toolkit here is a partial one",
                next="install the whole toolkit (its cublas, cusparse and cusolver development "
                f"packages), or install torch=={base.public_version} with the nvidia packages that "
                "it requires into an environment and use --base installed, or leave CUDA out with "
                "USE_CUDA=0",
            )


def _package_includes(base: Base) -> list[Path]:
    """Headers of the nvidia packages beside torch (cublas_v2.h and others the toolkit may lack)."""
    roots = {base.root, base.interpreter.site_packages}
    return sorted(p for root in roots for p in root.glob("nvidia/*/include") if p.is_dir())


def find(base: Base, env: Mapping[str, str], *, visible: bool = False) -> Toolchain:
    """All tools of a build for this base; raises ToolMissingError for what is not there.

    visible: CUDA is for this machine alone, as torch.utils.cpp_extension compiles.
    """
    cuda, note = find_cuda(base, env, visible=visible)
    return Toolchain(
        cxx=find_cxx(env),
        launcher=find_launcher(env),
        jobs=job_count(env, GRAFT_JOB_BYTES),
        capabilities=find_capabilities(base, platform.machine()),
        cuda=cuda,
        cuda_note=note,
    )


def find_for_check(base: Base, env: Mapping[str, str], jobs: int) -> Toolchain:
    """The host's compilers, `jobs` at once unless the user says MAX_JOBS.

    A toolkit that a wheel could not be built with leaves CUDA out of a check, and the note says so;
    where it fits, a check compiles for one architecture.
    """
    try:
        found = find(base, env)
    except (ToolkitMismatchError, ToolMissingError) as error:
        if base.cuda is None:
            raise
        found = replace(find(base, {**env, "USE_CUDA": "0"}), cuda_note=error.what)
    if found.cuda is not None:
        found = replace(found, cuda=replace(found.cuda, gencode=found.cuda.gencode[:1]))
    return found if env.get("MAX_JOBS") else replace(found, jobs=jobs)
