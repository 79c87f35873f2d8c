"""A source build, second half: a tree with the additions in it becomes a verified wheel.

`python -m build --wheel --no-isolation` serves both backends that releases have used. What it
prints goes to a log; on the screen is one line. When a run is interrupted or killed, its compilers
end with it, and the next run resumes there.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ..additions.load import Additions
from ..errors import ForkError, ToolMissingError, VerificationError
from ..native import diagnostics, toolchain
from ..native.diagnostics import Diagnostic
from ..native.ninja import Progress, read_step
from ..upstream.base import Base, Interpreter
from ..upstream.pins import PINS, Release, WheelName, in_order, python_number
from ..upstream.sources import SourceCheckout
from ..upstream.tree import ATEN, SourceTree
from ..upstream.wheel import grafted_version, read_version_file
from ..util import files, process, venv
from ..util.ui import Ui
from ..wheel import pack, repair
from . import settings
from .settings import SETTINGS, Environment, Setting

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
    tags = in_order({pin.name.interpreter for pin in release.wheels})
    if not tags or interpreter.tag in tags:
        return
    number, known = python_number(interpreter.tag), [python_number(tag) for tag in tags]
    fault = ("too old for" if number < known[0] else "too new for" if number > known[-1]
             else f"a build ({interpreter.tag}) that is not for")  # fmt: skip
    raise ToolMissingError(
        f"Python {interpreter.version} is {fault} torch {tree.version}",
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


@dataclass(frozen=True)
class SourceBuild:
    """The build of a tree that has the additions in it.

    root: the directory for what is made beside the tree: the log, the backend's wheel.
    prefix: where a source package's dependencies are unpacked, if it has any.
    """

    tree: SourceTree
    additions: Additions
    environment: Environment
    root: Path
    prefix: Path | None = None

    @property
    def log(self) -> Path:
        """Gets all that is printed, after what earlier runs printed."""
        return self.root / "build.log"

    def build(self, *, fresh: bool, ui: Ui) -> Path:
        """Configure, compile and make the backend's wheel; minutes to hours."""
        settings.require_same_settings(self.tree, self.environment, fresh=fresh)
        if warning := settings.require_space(self.tree, self.environment):
            ui.warn(warning)
        ui.note(f"    all output goes to {self.log}")
        with ui.step("build all of PyTorch") as step:
            wheel, steps = self.run(step.advance)
            step.say(f"{steps} steps, {self.environment.value('MAX_JOBS')} at once")
        return wheel

    def run(self, progress: Progress) -> tuple[Path, int]:
        """Run the build to its end: the wheel as the backend made it, and the steps of ninja.

        Raises CompileError with the first compiler error, StateError, OutputError.
        """
        files.write_json(self.tree.root / "build" / SETTINGS, self.environment.note)
        self._reconfigure_for_new_files()
        self._restore_license()
        out, steps = self.root / "raw", 0
        shutil.rmtree(out, ignore_errors=True)
        command: list[str | Path] = [
            self.environment.python, "-m", "build", "--wheel", "--no-isolation",
            "--skip-dependency-check", "--outdir", out, self.tree.root,
        ]  # fmt: skip
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            sink = self.log.open("ab", buffering=0)
        except OSError as error:
            raise files.output_error(self.log, error) from error
        with sink:
            start = sink.tell()

            def see(line: str) -> None:
                nonlocal steps
                sink.write(line.encode())
                if step := read_step(line):
                    steps += 1
                    progress(step[0], step[1], f"{step[0]} of {step[1]}")

            status = process.stream(command, see, cwd=self.tree.root, env=self._variables())
        if status:
            raise self._failure(status, start)
        wheels = sorted(out.glob("*.whl"))
        if len(wheels) != 1:
            raise ForkError(
                f"the build left {len(wheels)} wheels where one is expected", where=str(out),
                next=f"read {self.log}; --fresh begins the build anew",
            )  # fmt: skip
        return wheels[0], steps

    def _variables(self) -> dict[str, str]:
        """The user's environment and the settings; the build environment's programs come first."""
        programs = self.environment.python.parent
        return process.clean_environment(
            {
                **self.environment.values,
                "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)]),
                "VIRTUAL_ENV": str(programs.parent),
                "LC_ALL": "C.UTF-8",
                "PYTHONUNBUFFERED": "1",
            }
        )

    def _reconfigure_for_new_files(self) -> None:
        """Kernels are found by globs, which CMake looks at only when it runs.

        The names of ours are kept beside the build; where they are others now, CMake is made to
        run: build.ninja depends on its cache.
        """
        build, ours = self.tree.root / "build", self.additions
        note, cache = build / "torchfork-sources.txt", build / "CMakeCache.txt"
        names = "".join(f"{path.relative_to(ours.source_root)}\n" for path in ours.sources)
        known = note.read_text(encoding="utf-8") if note.is_file() else None
        if known != names and cache.is_file():
            os.utime(cache)
        files.write_text(note, names)

    def _restore_license(self) -> None:
        """setup.py appends to LICENSE while it packs; one that was killed there left it so."""
        path = self.tree.root / "LICENSE"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if _BUNDLED in text:
            files.write_text(path, text.partition(_BUNDLED)[0])

    def _failure(self, status: int, start: int) -> ForkError:
        """What the log says from an offset on."""
        output = self.log.read_bytes()[start:].decode("utf-8", "replace")
        jobs = self.environment.value("MAX_JOBS")
        error = diagnostics.failure(output, self.log, jobs, self._in_additions)
        if missing := re.search(r"fatal error: (\S+): No such file or directory", error.why):
            return ToolMissingError(
                f"the compiler misses the header {missing[1]}",
                where=error.where,
                why=error.why,
                next="install the development package that has it, or correct the #include; then "
                f"run the same command again. Full log: {self.log}",
            )
        error.why = error.why or f"exit status {status}"
        return error

    def _in_additions(self, diagnostic: Diagnostic) -> str:
        """The kernel of the additions that was copied into the tree."""
        prefix = f"{self.tree.root / ATEN}/"
        original = self.additions.source_root / diagnostic.file.removeprefix(prefix)
        if diagnostic.file.startswith(prefix) and original in self.additions.sources:
            return f"{original}:{diagnostic.line}"
        return ""

    def finish(self, built: Path, interpreter: Interpreter, out: Path, ui: Ui) -> tuple[Path, Base]:
        """Bundle libraries, take the build's paths out, and pack reproducibly."""
        environment = self.environment
        with ui.step("bundle and pack") as step:
            unpacked, overlay = self.root / "unpacked", self.root / "overlay"
            shutil.rmtree(unpacked, ignore_errors=True)
            with zipfile.ZipFile(built) as archive:
                archive.extractall(unpacked)
            compiler = environment.value("CXX") or toolchain.find_cxx(os.environ)
            added = repair.complete(unpacked, overlay, self._library_directories(), compiler)
            base = _as_base(built, unpacked, interpreter, overlay)
            _check_version(base, environment.value("PYTORCH_BUILD_VERSION"))
            epoch = int(environment.value("SOURCE_DATE_EPOCH"))
            wheel = pack.pack(base, overlay, base.version, out, epoch)
            shutil.rmtree(unpacked)
            libraries = ", ".join(added) or "no libraries"
            step.say(f"{wheel.stat().st_size / 1e6:.1f} MB, with {libraries}")
        return wheel, base

    def _library_directories(self) -> list[Path]:
        if not self.prefix:
            return []
        usr = self.prefix / "usr" / "lib"
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
