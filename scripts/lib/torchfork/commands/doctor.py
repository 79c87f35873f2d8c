"""torchfork doctor: which torch an environment has, what became of it, and what to do."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from ..conformance.plan import of_environment
from ..errors import StateError, listed
from ..state import installed_torch
from ..state.journal import Journal
from ..upstream import pins
from ..upstream.archives import is_of_wheel, read_record
from ..upstream.base import ask, read_text
from ..upstream.tree import state_of
from ..upstream.wheel import VERSION_FILE, VersionFile, is_grafted, read_version_file
from ..util import files
from ..util.ui import Ui
from ..wheel.overlay import DATA
from ..wheel.overlay_runtime import activate
from .options import path

_QUESTION = """
import importlib.util, json, sys
torch = importlib.util.find_spec("torch")
print(json.dumps([torch and torch.origin, [entry for entry in sys.path if entry]]))
"""


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork doctor`."""
    parser.add_argument(
        "--env", metavar="DIR",
        help="the environment: its directory or its interpreter (default: the current one)",
    )  # fmt: skip
    parser.add_argument(
        "--constraints", type=path, metavar="FILE",
        help="what a build wrote beside its wheel: is that still what the environment has?",
    )  # fmt: skip
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Found:
    """The torch that an interpreter imports, and what package managers and overlays say of it.

    site: the directory that has torch/. path: all that the interpreter imports from.
    overlays: overlay.json of each, by the file's place.
    """

    site: Path
    path: tuple[Path, ...]
    version: VersionFile
    distributions: tuple[importlib.metadata.Distribution, ...]
    overlays: dict[Path, activate.MadeFor]

    @property
    def reinstall(self) -> str:
        """The command that brings its files back."""
        known = [one.version for one in self.distributions] or [self.version.version]
        return f"python -m pip install --force-reinstall --no-deps 'torch=={known[0]}'"


def run(options: argparse.Namespace, ui: Ui) -> None:
    """Say which torch there is; raise StateError for the first thing that is wrong with it."""
    found = find(of_environment(options.env).executable)
    known = installed_torch.store(found.site).load()
    state = "develop" if known else "wheel" if is_grafted(found.version.version) else "official"
    release = pins.load().by_commit(found.version.git_version)
    if state == "official" and release is None:
        state = "unknown"
    kind = {
        "develop": "official, with additions put into it by --develop",
        "wheel": "a wheel that torchfork made",
        "official": f"official, {release.version if release else ''}",
        "unknown": "of a commit that no release pins",
    }[state]
    ui.note(f"torch:    {found.version.version} ({kind})")
    ui.note(f"in:       {found.site}")
    for place, made_for in found.overlays.items():
        ui.note(f"overlay:  {made_for['name']} {made_for['version']} ({_activation(place)})")
        state = "overlay"
    wrong = [*_misplaced(found), *_overlaid(found)]
    wrong += _developed(found, known) if known else _replaced(found)
    wrong += _unconstrained(found, options.constraints) if options.constraints else []
    for other in wrong[1:]:
        ui.warn(f"{other.what}: {other.why}")
    if wrong:
        raise wrong[0]
    ui.result(state)


def find(python: Path) -> Found:
    """The torch of an interpreter. Raises StateError where it has none."""
    off = {activate.SWITCH: "0"}  # two overlays would refuse to be asked
    origin, entries = ask(python, _QUESTION, off)
    search = tuple(map(Path, entries))
    if origin is None:
        raise StateError(
            "no torch is installed here",
            where=str(python),
            next=f"{python} -m pip install dist/torch-….whl, or torch=={pins.load().default}",
        )
    site = Path(origin).parents[1]
    version = read_version_file(read_text(site / VERSION_FILE), str(site / VERSION_FILE))
    known = importlib.metadata.distributions(name="torch", path=list(map(str, search)))
    data = {
        file: json.loads(read_text(file))
        for at in search
        for file in at.glob(f"*/{DATA}")
        if file.with_name(Path(activate.__file__).name).is_file()  # another's file has other data
    }
    return Found(site, search, version, tuple(known), data)


def _activation(data: Path) -> str:
    if activate.is_switched_off():
        return f"switched off: {activate.SWITCH}=0"
    package = data.parent.name
    if not data.parents[1].joinpath(f"{package}.pth").is_file():
        return f"not activated by itself: import {package} before torch"
    return "activated when torch is imported"


def _misplaced(found: Found) -> Iterator[StateError]:
    """Another torch is imported than the one that package managers know."""
    places = [Path(str(one.locate_file(""))) for one in found.distributions]
    if found.site not in places:
        yield StateError(
            "pip does not know the torch that is imported",
            where=str(found.site),
            why="no torch-….dist-info lies beside it"
            + "".join(f"; one lies in {place}" for place in places),
            next="take its directory off PYTHONPATH, or install it as a wheel",
        )
    elif places.count(found.site) > 1:
        versions = ", ".join(one.version for one in found.distributions)
        yield StateError(
            "torch was installed over another torch",
            where=str(found.site),
            why=f"there is metadata of {versions}",
            next="python -m pip uninstall torch, as often as it finds one, then install it again",
        )


def _replaced(found: Found) -> Iterator[StateError]:
    """Files that are not those which package managers installed."""
    for one in found.distributions:
        if Path(str(one.locate_file(""))) != found.site:
            continue
        version = found.version.version
        if one.version not in (version, version.partition("+")[0]):
            yield StateError(
                "torch was replaced since it was installed",
                where=str(found.site / VERSION_FILE),
                why=f"pip installed {one.version}, and this is {version}",
                next=found.reinstall,
            )
        told_by = ("torch/lib/libtorch.so", "torch/__init__.py", "torch/overrides.py")
        for name in _changed(one, told_by):
            yield StateError(
                "torch was replaced since it was installed",
                where=str(found.site / name),
                why="this is not the file that pip installed",
                next=found.reinstall,
            )


def _changed(one: importlib.metadata.Distribution, among: Collection[str] = ()) -> list[str]:
    """Files of a distribution that are not as they were installed, of `among` or of all."""
    rows = read_record(one.read_text("RECORD") or "")
    chosen = {name: row for name, row in rows.items() if is_of_wheel(name)}
    places = {name: Path(str(one.locate_file(name))) for name in chosen.keys() & (among or chosen)}
    return [
        name
        for name, file in sorted(places.items())
        if not (file.is_file() and rows[name].matches(bytes.fromhex(files.sha256_file(file))))
    ]


def _developed(found: Found, known: Journal) -> Iterator[StateError]:
    again = "scripts/build_torch.sh --develop, or --undo"
    changed = [n for n, e in known.entries.items() if state_of(found.site / n) not in e.ours]
    if not known.settled:
        yield StateError(
            "a --develop run was interrupted", where=str(found.site), why="", next=again
        )
    elif changed:
        yield StateError(
            f"{len(changed)} file{'s' * (len(changed) > 1)} of --develop changed since",
            where=str(found.site),
            why=listed(changed),
            next=f"{found.reinstall}\nand then {again}",
        )


def _overlaid(found: Found) -> Iterator[StateError]:
    torch = found.site / "torch"
    for place, made_for in found.overlays.items():
        if problem := activate.mismatch(torch, made_for):
            yield StateError(
                f"{made_for['name']} is not for this torch, which is imported without it",
                where=str(place.parent),
                why=f"it was {problem}",
                next=made_for["cure"],
            )
        name, version = made_for["name"], made_for["version"]
        for one in importlib.metadata.distributions(name=name, path=list(map(str, found.path))):
            if changed := _changed(one):
                yield StateError(
                    f"files of {name} are not those that were installed",
                    where=str(one.locate_file("")),
                    why=f"{listed(changed)}\n(uninstalling another overlay removes shared stubs)",
                    next=f"python -m pip install --force-reinstall --no-deps '{name}=={version}' "
                    "from where it came",
                )
    if len(found.overlays) > 1 and not activate.is_switched_off():
        names = [made_for["name"] for made_for in found.overlays.values()]
        yield StateError(
            "two overlays are installed, and importing torch is refused",
            where=", ".join(str(place.parent) for place in found.overlays),
            why="only one can be active",
            next=f"python -m pip uninstall {' '.join(names)}, and install one again; or build "
            "their additions into one overlay",
        )


def _unconstrained(found: Found, constraints: Path) -> Iterator[StateError]:
    """What the environment has otherwise than a build's constraints say."""
    search = list(map(str, found.path))
    for line in read_text(constraints).split():
        wanted = Requirement(line)
        there = [
            one.version for one in importlib.metadata.distributions(name=wanted.name, path=search)
        ]
        if not there or there[0] not in wanted.specifier:
            yield StateError(
                f"{wanted.name} was replaced since, or never installed",
                where=str(found.site),
                why=f"{line} is wanted, {there[0] if there else 'none'} is installed",
                next=f"python -m pip install '{line}' from where that build is, and give pip\n"
                f"--constraint {constraints} from then on",
            )
