"""Which object files a graft consists of, and where its directories are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .additions import Additions
from .capabilities import FLAGS
from .toolchain import Toolchain

SUPPORT = Path(__file__).resolve().parent / "support"
# Compilers run in layout.build and are given these relative paths: objects hold no trace of where
# they were built, and a compiler cache knows them again in another directory.
ADDITIONS_LINK = "../include/ATen"
CORE_SUPPORT = ("core.cpp", "portability.cpp")
PYTHON_SUPPORT = ("portability.cpp", "python.cpp")


@dataclass(frozen=True)
class Generated:
    """A generated source that has something of ours in it."""

    name: str  # 'ATen/RegisterCPUEverything.cpp'
    python: bool  # belongs into torch/_C, the others into libtorch


@dataclass(frozen=True)
class Unit:
    """One object file: what it is made of and how."""

    source: str  # relative to the build directory
    object: str  # relative to the build directory
    rule: str  # cxx or nvcc
    flags: tuple[str, ...]
    python: bool  # linked into torch/_C
    ours: bool  # from the additions, not generated


@dataclass(frozen=True)
class Layout:
    """The directories of a build, all below one."""

    root: Path

    @property
    def build(self) -> Path:
        """Objects, libraries and build.ninja."""
        return self.root / "build"

    @property
    def overlay(self) -> Path:
        """What the wheel gets: a tree as site-packages has it, with changed and new files only."""
        return self.root / "overlay"

    @property
    def private(self) -> Path:
        """Generated headers that wheels leave out, as they would lie below torch/include."""
        return self.root / "private"

    @property
    def additions_include(self) -> Path:
        """Holds a link ATen to aten_src, so that <ATen/native/X.h> finds the additions' own."""
        return self.root / "include"

    @property
    def support(self) -> Path:
        """A copy of the hand-written C++ that every graft has."""
        return self.root / "support"

    @property
    def tree(self) -> Path:
        """The merged copy of torchgen."""
        return self.root / "tree"

    @property
    def templates(self) -> Path:
        """The autograd templates of the graft."""
        return self.root / "templates"

    @property
    def generated(self) -> Path:
        """What the code generator made."""
        return self.root / "generated"

    @property
    def sources(self) -> Path:
        """The generated sources that are compiled, adapted."""
        return self.root / "sources"


def _is_cuda(path: Path) -> bool:
    return path.suffix == ".cu" or "cuda" in path.parts


def additions_units(additions: Additions, toolchain: Toolchain) -> list[Unit]:
    """The objects of aten_src: native/cpu once a capability, cuda only with a toolkit."""
    units = []
    for path in additions.sources:
        relative = path.relative_to(additions.source_root)
        name = f"additions/{relative.as_posix()}"
        source = f"{ADDITIONS_LINK}/{relative.as_posix()}"
        if path.suffix not in {".cpp", ".cu"}:
            continue
        if _is_cuda(relative):
            if toolchain.cuda:
                rule = "nvcc" if path.suffix == ".cu" else "cxx"
                units.append(Unit(source, f"{name}.o", rule, ("-O3",), False, True))
        elif relative.parts[:2] == ("native", "cpu"):
            for capability in toolchain.capabilities.names:
                chosen = (
                    "-O3", f"-DCPU_CAPABILITY={capability}",
                    f"-DCPU_CAPABILITY_{capability}", *FLAGS[capability],
                )  # fmt: skip
                units.append(Unit(source, f"{name}.{capability}.o", "cxx", chosen, False, True))
        else:
            units.append(Unit(source, f"{name}.o", "cxx", ("-O3",), False, True))
    return units


def all_units(
    generated: Sequence[Generated], additions: Additions, toolchain: Toolchain
) -> list[Unit]:
    """Every object of the graft, in a fixed order."""
    units = [
        Unit(
            f"../sources/{item.name}",
            f"generated/{item.name}.o",
            "nvcc" if item.name.endswith(".cu") else "cxx",
            ("-O2", "-w"),
            item.python,
            False,
        )
        for item in generated
    ]
    units += additions_units(additions, toolchain)
    for part, names, python in (
        ("core", CORE_SUPPORT, False),
        ("python", PYTHON_SUPPORT, True),
    ):
        units += [
            Unit(f"../support/{name}", f"support/{part}/{name}.o", "cxx", ("-O2",), python, False)
            for name in names
        ]
    return sorted(units, key=lambda unit: unit.object)


def source_path(unit: Unit, additions: Additions) -> Path:
    """Where the user finds the source of an object of the additions."""
    return additions.source_root / unit.source.removeprefix(f"{ADDITIONS_LINK}/")
