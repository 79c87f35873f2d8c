"""Which object files a graft consists of, and where its directories are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..additions.load import Additions
from ..codegen.select import Generated
from ..upstream.abi import FLAGS
from .toolchain import Toolchain

SUPPORT = Path(__file__).resolve().parents[1] / "support"
# Compilers run in layout.build and are given these relative paths: objects hold no trace of where
# they were built, and a compiler cache knows them again in another directory.
ADDITIONS_LINK = "../include/ATen"
CORE_SUPPORT = ("core.cpp", "portability.cpp")
PYTHON_SUPPORT = ("portability.cpp", "python.cpp")


@dataclass(frozen=True)
class CompileStep:
    """One object file: what it is made of and how."""

    source: str  # relative to the build directory
    object: str  # relative to the build directory
    rule: str  # cxx or nvcc
    flags: tuple[str, ...]
    python: bool  # linked into torch/_C
    ours: bool  # from the additions, not generated


def _is_cuda(path: Path) -> bool:
    return path.suffix == ".cu" or "cuda" in path.parts


def additions_units(additions: Additions, toolchain: Toolchain) -> list[CompileStep]:
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
                units.append(CompileStep(source, f"{name}.o", rule, ("-O3",), False, True))
        elif relative.parts[:2] == ("native", "cpu"):
            for capability in toolchain.capabilities.names:
                chosen = (
                    "-O3", f"-DCPU_CAPABILITY={capability}",
                    f"-DCPU_CAPABILITY_{capability}", *FLAGS[capability],
                )  # fmt: skip
                units.append(
                    CompileStep(source, f"{name}.{capability}.o", "cxx", chosen, False, True)
                )
        else:
            units.append(CompileStep(source, f"{name}.o", "cxx", ("-O3",), False, True))
    return units


def all_units(
    generated: Sequence[Generated], additions: Additions, toolchain: Toolchain
) -> list[CompileStep]:
    """Every object of the graft, in a fixed order."""
    units = [
        CompileStep(
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
            CompileStep(
                f"../support/{name}", f"support/{part}/{name}.o", "cxx", ("-O2",), python, False
            )
            for name in names
        ]
    return sorted(units, key=lambda unit: unit.object)


def source_path(unit: CompileStep, additions: Additions) -> Path:
    """Where the user finds the source of an object of the additions."""
    return additions.source_root / unit.source.removeprefix(f"{ADDITIONS_LINK}/")
