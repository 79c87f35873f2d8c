"""Serves torch's changed modules and libraries from this package; torch's own files stay.

Imports the standard library alone, and is imported when torch is.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

HERE = Path(__file__).resolve().parent
SWITCH = "TORCHFORK_OVERLAY"


class MadeFor(TypedDict):
    """overlay.json: the torch that an overlay was made for, and what the overlay has."""

    name: str
    version: str
    torch: str  # its version
    commit: str
    covers: dict[str, int]  # CRC-32 of each file of torch's that the overlay has another of
    modules: dict[str, str]  # dotted name to file
    preload: list[str]  # torch's libraries, in the order in which they are loaded
    cure: str  # the command where another torch is installed


Find = Callable[[str, Sequence[str] | None, ModuleType | None], ModuleSpec | None]


def served(package: str) -> Find | None:
    """What finds this overlay's modules; None where there is no torch that it was made for."""
    torch = _installed_torch()
    if torch is None or is_switched_off():
        return None
    names = [getattr(finder, "torchfork_overlay", package) for finder in sys.meta_path]
    if others := [name for name in names if name != package]:
        raise ImportError(
            f"two overlays of torch are installed, and only one can be active: {package} and "
            f"{', '.join(others)}; uninstall both and install one again, build their additions "
            f"into one overlay, or set {SWITCH}=0 to have neither"
        )
    if not HERE.is_dir():
        raise ImportError(
            f"{package} lies in an archive, from which no library can be loaded: {HERE.parent}; "
            f"install it (python -m pip install), or set {SWITCH}=0 to do without it"
        )
    return _finder(torch)


@cache  # read and warned of once, however often a program asks whether there is a torch
def _finder(torch: Path) -> Find | None:
    """What finds this overlay's modules beside a torch; None where it was made for another."""
    made_for: MadeFor = json.loads((HERE / "overlay.json").read_text(encoding="utf-8"))
    if problem := mismatch(torch, made_for):
        warnings.warn(
            f"{made_for['name']} {made_for['version']} was {problem}. torch is imported without "
            f"its operators. To mend it: {made_for['cure']}",
            stacklevel=4,
        )
        return None
    return Modules(torch, made_for).find_spec


def warn_of_order(package: str) -> None:
    """Say why an overlay that is imported after torch does nothing."""
    if not is_switched_off():
        warnings.warn(
            f"torch was imported before {package}, and so without its operators: "
            f"import {package} first",
            stacklevel=3,
        )


def is_switched_off() -> bool:
    """Whether the user wants torch without its overlay."""
    return os.environ.get(SWITCH, "") == "0"


def _nothing(name: str, path: Sequence[str] | None, target: ModuleType | None) -> None:
    """Finds no module."""


def _installed_torch() -> Path | None:
    """Where torch is: on the path, or where the finder of an editable installation has it."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", _nothing)  # some have none, and Python passes them over
        if not hasattr(finder, "torchfork_overlay") and (spec := find("torch", None, None)):
            return Path(spec.origin).parent if spec.origin else None
    return None


def mismatch(torch: Path, made_for: MadeFor) -> str:
    """What the overlay was made for and what is installed otherwise; '' where it is the same.

    The files that the overlay replaces must be byte for byte those that it was made from. A CRC is
    enough to see an edit, and costs a millisecond on processors that take ten for SHA-256.
    """
    try:
        text = (torch / "version.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    version = _assigned("__version__", text)
    commit = _assigned("git_version", text)
    made = f"made for torch {made_for['torch']} (commit {made_for['commit'][:12]}), and "
    if (version, commit) != (made_for["torch"], made_for["commit"]):
        there = f"{version or '(unknown)'} (commit {commit[:12] or 'unknown'})"
        return f"{made}torch {there} is installed"
    for name, crc in made_for["covers"].items():
        try:
            data = (torch.parent / name).read_bytes()
        except OSError:
            return f"{made}the installed torch lacks {name}"
        if zlib.crc32(data) != crc:
            return f"{made}{name} of the installed torch was changed"
    return ""


def _assigned(name: str, text: str) -> str:
    found = re.search(rf"^{name}\b[^=\n]*= ['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return found[1] if found else ""


class Modules:
    """Finds what the overlay has: changed and new modules, torch._C, and all of torchgen."""

    def __init__(self, torch: Path, made_for: MadeFor) -> None:
        self._torch = torch
        self._modules, self._preload = made_for["modules"], made_for["preload"]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The overlay's file of a module, None where it has none."""
        if fullname in AFTER_IMPORT:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None:
                _change_after_import(spec)
            return spec
        name = self._modules.get(fullname)
        if name is None or (fullname == "torchgen" and self._is_of_another_torch(fullname, path)):
            return None
        if fullname == "torch._C":
            self._load_libraries()
        if not name.startswith("torch/") or not name.endswith("/__init__.py"):
            return importlib.util.spec_from_file_location(fullname, HERE / name)
        # A package of torch's is where it was, for its other modules and what it reads by path.
        place = self._torch.parent / name
        return importlib.util.spec_from_file_location(
            fullname, place, loader=SourceFileLoader(fullname, str(HERE / name)),
            submodule_search_locations=[str(place.parent)],
        )  # fmt: skip

    def _is_of_another_torch(self, fullname: str, path: Sequence[str] | None) -> bool:
        """Whether the path leads to a torchgen that does not lie beside the installed torch."""
        spec = PathFinder.find_spec(fullname, path)
        origin = spec.origin if spec else None
        return origin is not None and Path(origin).parents[1] != self._torch.parent

    def _load_libraries(self) -> None:
        """Load libtorch.so of the overlay before anything of torch's asks for one.

        The loader takes a library that is loaded already for any that needs its SONAME, so
        libtorch_python.so and extensions bind to this one, with the base's own libraries below it.
        """
        for name in self._preload:
            ctypes.CDLL(str(self._torch / "lib" / name))
        ctypes.CDLL(str(HERE / "torch" / "lib" / "libtorch.so"))
        ctypes.CDLL(str(self._torch / "lib" / "libtorch_python.so"))


def _change_after_import(spec: ModuleSpec) -> None:
    """Have a module run as it is, then told where the overlay's C++ is."""
    loader, change = spec.loader, AFTER_IMPORT[spec.name]
    assert loader is not None  # a module of torch's is a file
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        change(module)

    # The loader itself stays, for inspect and linecache; it is this module's alone.
    loader.exec_module = exec_module  # type: ignore[method-assign]


def _extensions_find_cxx(module: Any) -> None:
    """torch.utils.cpp_extension: the overlay's headers and library come before torch's own."""
    include, library = str(HERE / "torch" / "include"), str(HERE / "torch" / "lib")
    linked = [f"-L{library}", f"-Wl,-rpath,{library}"]
    headers, libraries = module.include_paths, module.library_paths
    prepare = module._prepare_ldflags
    module.include_paths = lambda *args, **options: [include, *headers(*args, **options)]
    module.library_paths = lambda *args, **options: [library, *libraries(*args, **options)]
    module._prepare_ldflags = lambda flags, *args, **options: prepare(
        [*flags, *linked], *args, **options
    )


def _cmake_finds_cxx(module: Any) -> None:
    """torch.utils: the overlay's TorchConfig.cmake, which includes torch's own, comes first."""
    own = str(HERE / "torch" / "share" / "cmake")
    module.cmake_prefix_path = f"{own};{module.cmake_prefix_path}"


AFTER_IMPORT = {"torch.utils.cpp_extension": _extensions_find_cxx, "torch.utils": _cmake_finds_cxx}
