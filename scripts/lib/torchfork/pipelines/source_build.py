"""A source build, second half: a tree with the additions in it becomes a verified wheel."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..additions.load import Additions
from ..codegen.model import Manifest
from ..errors import VerificationError
from ..native import toolchain
from ..upstream.base import Base, Interpreter
from ..upstream.pins import PINS, Release, WheelName
from ..upstream.sources import SourceCheckout
from ..upstream.wheel import grafted_version, read_version_file
from ..util import files
from ..util.ui import Ui
from ..wheel import pack, repair, verify
from . import settings, wheel_build
from .settings import Setting
from .workdir import TreeBuildDir

SUPPORT = Path(__file__).resolve().parents[1] / "support" / "source_build.cmake"
# -O levels; which files they are for stands in source_build.cmake.
GENERATED_LEVEL = "-O1"
GLUE_LEVEL = "-Og"
DEFAULT_LEVEL = "-O1"
# Files of a release that compile as one; see ci/find_unity_groups.py.
UNITY = PINS.parent


@dataclass(frozen=True)
class Environment:
    """What a tree is built in and with."""

    python: Path
    settings: tuple[Setting, ...]

    def value(self, name: str) -> str:
        """A variable's value, '' where it is not set."""
        return next((s.value for s in self.settings if s.name == name), "")


def wheel_version(opened: SourceCheckout, number: int) -> str:
    """'2.6.0+ext1': a local part keeps what requires torch==2.6.0 satisfied."""
    return grafted_version(opened.tree.version, number)


def make_environment(
    opened: SourceCheckout, interpreter: Interpreter, release: Release | None, root: Path, ui: Ui
) -> Path:
    """The interpreter of an environment with all that the tree's build needs."""
    wheel_build.require_python(opened.tree, interpreter, release)
    pinned = opened.pins.requirements if opened.pins else ()
    lines = [r.line for r in pinned] or wheel_build.requirements_of(opened.tree)
    key = files.sha256_text(str(interpreter.executable), interpreter.version, *lines)[:12]
    with ui.step("make the build environment") as step:
        python = wheel_build.make_environment(
            root / f"env-{interpreter.tag}-{key}", interpreter, lines, hashed=bool(pinned),
            say=lambda text: step.advance(0, 0, text),
        )  # fmt: skip
        step.say(f"{len(lines)} packages" + (", sha256 as pinned" if pinned else ""))
    return python


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
        for name, value in wheel_build.require_cmake(opened.tree, python).items():
            reason = "CMake 4 refuses parts of older trees"
            source.append(Setting(name, value, "machine", reason))
    found = settings.defaults(
        opened.tree, version=version, prefixes=prefixes, environment=os.environ, source=source,
        epoch=pack.epoch_from(),
    )  # fmt: skip
    return tuple(found)


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


def build(
    opened: SourceCheckout,
    environment: Environment,
    additions: Additions,
    layout: TreeBuildDir,
    *,
    fresh: bool,
    ui: Ui,
) -> wheel_build.Built:
    """Configure, compile and make the backend's wheel; minutes to hours."""
    tree = opened.tree
    settings.require_same_settings(tree, environment.settings, environment.python, fresh=fresh)
    warning = settings.require_space(tree, environment.settings)
    if warning:
        ui.warn(warning)
    log = layout.root / "build.log"
    ui.note(f"    all output goes to {log}")
    with ui.step("build all of PyTorch") as step:
        built = wheel_build.build(
            tree, environment.python, environment.settings, layout.root / "raw", log, additions,
            step.advance,
        )  # fmt: skip
        step.say(f"{built.steps} steps, {environment.value('MAX_JOBS')} at once")
    return built


def finish(
    opened: SourceCheckout,
    built: wheel_build.Built,
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
        compiler = environment.value("CXX") or toolchain.find_cxx(os.environ)
        places = _library_directories(opened)
        added = repair.complete(unpacked, layout.root / "overlay", places, compiler)
        base = _as_base(built.wheel, unpacked, opened, interpreter, layout.root / "overlay")
        wheel = pack.pack(
            base, layout.root / "overlay", base.version, out,
            int(environment.value("SOURCE_DATE_EPOCH")),
        )  # fmt: skip
        shutil.rmtree(unpacked)
        step.say(f"{wheel.stat().st_size / 1e6:.1f} MB, with {', '.join(added) or 'no libraries'}")
    return wheel, base


def _library_directories(opened: SourceCheckout) -> list[Path]:
    if not opened.prefix:
        return []
    usr = opened.prefix / "usr" / "lib"
    return [usr, *sorted(path for path in usr.glob("*-linux-gnu*") if path.is_dir())]


def _as_base(
    wheel: Path, unpacked: Path, opened: SourceCheckout, interpreter: Interpreter, overlay: Path
) -> Base:
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


def check_version(base: Base, wanted: str) -> None:
    """The wheel's own torch.__version__ is the one that was asked for."""
    if base.version != wanted:
        raise VerificationError(
            f"the build called itself {base.version}, not {wanted}",
            where="torch/version.py",
            why="PYTORCH_BUILD_VERSION or PYTORCH_BUILD_NUMBER says otherwise",
            next="unset them, or set both as you want the version to be",
        )


def verify_wheel(
    wheel: Path,
    base: Base,
    manifest: Manifest,
    schemas: Sequence[str],
    work: Path,
    cache: Path,
    ui: Ui,
) -> None:
    """Install the wheel into a clean environment; compare it with the tree and the manifest."""
    with ui.step("verify in a clean environment") as step:
        report = verify.verify(
            wheel, base, manifest, work / "verify", cache, upstream=schemas,
            say=lambda text: step.advance(0, 0, text), on_wait=ui.warn,
        )  # fmt: skip
        step.say(
            f"imports; {len(schemas)} native functions of upstream's, {len(report.added)} added; "
            f"{report.files} hashes hold"
        )
