"""Reads an additions directory: the YAML files with their line numbers, and the sources."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdditionsError, CollisionError, ForkError, combined
from ..util import files
from . import fake_impls, paths, yaml_file
from .yaml_file import Entry, YamlFile

NATIVE = "native_functions_additions.yaml"
DERIVATIVES = "derivatives_additions.yaml"
DEPRECATED = "deprecated_additions.yaml"
SOURCES = "aten_src"
PATCHES = "patches"
# Read by overlays and by conformance alone.
OVERLAY = "overlay.toml"
GAPS = "citizenship.toml"
SAMPLES = "samples.py"
RANGE = "torch"  # the field of an entry that says which releases it is for
SOURCE_SUFFIXES = frozenset({".cpp", ".cu", ".h", ".cuh"})


@dataclass(frozen=True)
class Additions:
    """Everything that an additions directory adds to upstream."""

    root: Path
    native: YamlFile
    derivatives: YamlFile
    deprecated: YamlFile
    sources: tuple[Path, ...]  # below aten_src, sorted
    fake_impls: str = ""  # rules for fake tensors

    source_root = files.Below(SOURCES)  # the image of aten/src/ATen

    @property
    def headers(self) -> tuple[Path, ...]:
        """The headers among the sources."""
        return tuple(path for path in self.sources if path.suffix in {".h", ".cuh"})

    @property
    def manual_headers(self) -> tuple[str, ...]:
        """Headers of derivative helpers, as generated autograd code includes them."""
        return tuple(
            f"ATen/{path.relative_to(self.source_root).as_posix()}"
            for path in self.headers
            if path.name.endswith("FunctionsManual.h")
        )

    def native_entry(self, name: str) -> Entry | None:
        """The entry that declares an operator by its name with overload."""
        return next((entry for entry in self.native.entries if entry.name == name), None)

    def fingerprint(self) -> str:
        """A hash over everything that a build reads of these additions."""
        single = [f.path for f in (self.native, self.derivatives, self.deprecated)]
        single = [p for p in (*single, self.root / fake_impls.FILE) if p.exists()]
        folders = (self.source_root, self.root / PATCHES)
        found = [path for folder in folders for path in paths.tree(folder, self.root)]
        return files.fingerprint([*single, *found], self.root)


def duplicates(file: YamlFile) -> Iterator[CollisionError]:
    """Operators with several entries; those with ranges are compared once the release is known."""
    seen: dict[str, Entry] = {}
    for entry in file.entries:
        first = seen.setdefault(entry.name, entry)
        if first is not entry and not (RANGE in first.fields and RANGE in entry.fields):
            yield CollisionError(
                f"'{entry.name}' is declared twice",
                where=entry.where(),
                why=f"{first.where()} declares it already",
                next="delete one of the two, give one an overload name (name.overload), or give "
                f"both ranges that exclude each other ({RANGE}: …)",
            )


def _misnamed(root: Path) -> Iterator[AdditionsError]:
    """Files with upstream's name or another ending, which would count as absent."""
    for name in (NATIVE, DERIVATIVES, DEPRECATED, fake_impls.FILE):
        plain = name.replace("_additions", "")
        others = {plain, *(n.replace(".yaml", ".yml") for n in (name, plain))} - {name}
        for other in sorted(others) if not (root / name).exists() else ():
            if (root / other).exists():
                yield AdditionsError(
                    f"'{other}' is not read",
                    where=str(root / other),
                    why=f"the file of an additions directory is called {name}",
                    next="rename it",
                )


def load(root: Path) -> Additions:
    """Read an additions directory.

    Raises AdditionsError where it is none or files of it are malformed, CollisionError where it
    declares an operator twice; every such error of the run is in the one raised.
    """
    root = root.resolve()
    errors: list[ForkError] = []
    titles = {NATIVE: "func", DERIVATIVES: "name", DEPRECATED: "name"}
    yamls = {name: YamlFile(root / name, "", ()) for name in titles}
    for name, title in titles.items():
        with _collected(errors):
            yamls[name] = yaml_file.parse(root / name, title, root)
    errors += _misnamed(root)
    if not errors and not (root / NATIVE).exists():
        raise AdditionsError(
            f"no additions directory: there is no {NATIVE}",
            where=str(root),
            next="name a directory that holds one with --additions DIR",
        )
    errors += [*duplicates(yamls[NATIVE]), *duplicates(yamls[DERIVATIVES])]
    rules = ""
    with _collected(errors):
        rules = fake_impls.read(root)
    for name in (OVERLAY, GAPS, SAMPLES):
        with _collected(errors):
            paths.is_file(root / name, root)
    sources: list[Path] = []
    for folder in (SOURCES, PATCHES):
        with _collected(errors):
            found = paths.tree(root / folder, root)
            paths.check_sizes(found)
            sources += [p for p in found if folder == SOURCES and p.suffix in SOURCE_SUFFIXES]
    if errors:
        raise combined(errors)
    return Additions(
        root, yamls[NATIVE], yamls[DERIVATIVES], yamls[DEPRECATED], tuple(sources), rules
    )


@contextlib.contextmanager
def _collected(errors: list[ForkError]) -> Iterator[None]:
    try:
        yield
    except ForkError as error:
        errors.append(error)
