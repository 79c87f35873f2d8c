"""What is to be checked, and in which torch: an environment, and the operators that it has."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ..additions import ranges
from ..additions.formulas import FIELD_NAMES
from ..additions.load import SAMPLES, Additions
from ..additions.yaml_file import words
from ..codegen import client
from ..codegen.model import FinishedOperator, Kind, OperatorGroup
from ..errors import AdditionsError, BaseRefusedError, UsageError
from ..upstream import archives
from ..upstream.base import Interpreter, probe, read_text, require_python_tag
from ..upstream.wheel import VERSION_FILE, name_of, read_version_file
from ..util import files, process, venv
from ..util.venv import Say

REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements-citizenship.txt"
_ENTRY = re.compile(r"^\s{4,}((?:~|[A-Za-z_])[\w.~]*)\s*$")
_QUESTION = """
import importlib.util, pathlib, torchgen
print(pathlib.Path(importlib.util.find_spec("torch").origin).parents[1])
print(pathlib.Path(torchgen.__file__).resolve().parent)
"""


def of_environment(place: str | None) -> Interpreter:
    """The interpreter of an environment. place: its directory or its interpreter."""
    if place and (os.sep in place or Path(place).is_dir()):
        python = Path(place, "bin", "python") if Path(place).is_dir() else Path(place)
        if not python.exists():
            raise UsageError(
                f"{place} is no Python environment: there is no {python}",
                next="name an environment's directory or its interpreter",
            )
        place = str(python)
    return probe(place, headers=False)


def of_wheel(wheel: Path, python: str | None, work: Path, say: Say) -> Interpreter:
    """An interpreter that has the wheel and what it requires, and nothing else."""
    if not wheel.is_file():
        raise UsageError(f"there is no wheel {wheel}", next="scripts/build_torch.sh makes one")
    target = probe(python, headers=False)
    require_python_tag(target, name_of(wheel).interpreter, str(wheel))
    required = archives.requirements_of(wheel)
    neutral = work / "neutral"
    neutral.mkdir(parents=True, exist_ok=True)
    made = venv.with_wheel(wheel.absolute(), target, required, work, neutral, say)
    return probe(made, headers=False)


def require_declared(additions: Additions, wanted: Iterable[str]) -> None:
    """Raise UsageError for a name that no operator of the additions has; needs no torch."""
    names = declared(additions)
    known = dict.fromkeys([*(name.partition(".")[0] for name in names), *names])
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3) or list(known)
            raise UsageError(
                f"the additions declare no operator '{name}'",
                where=str(additions.native.path),
                next=f"choose from: {', '.join(near)}",
            )


@dataclass(frozen=True)
class Plan:
    """The operators to check, and where their inputs come from."""

    operators: tuple[OperatorGroup, ...]
    samples: Path | None
    documented: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """'name' or 'name.overload' of each operator."""
        return tuple(operator.entry.qualified for operator in self.operators)

    def matching(self, wanted: Sequence[str]) -> list[str]:
        """The operators that names stand for: their own, their base name, or a variant's."""
        return [
            operator.entry.qualified
            for operator in self.operators
            if not wanted or operator.called & set(wanted)
        ]


def make(additions: Additions, python: Path, scratch: Path) -> Plan:
    """Have the torch's own generator describe the additions' operators.

    python: the interpreter that has the torch; scratch: a directory for this.
    Raises BaseRefusedError where it has no torchgen, or lacks an operator that is for its release.
    """
    home = scratch / "home"
    home.mkdir(parents=True, exist_ok=True)
    link = home / "torchgen"
    link.unlink(missing_ok=True)
    site, torchgen = _found(python)
    link.symlink_to(torchgen)
    version = read_version_file(read_text(site / VERSION_FILE), str(site / VERSION_FILE)).version
    additions = ranges.for_release(additions, version)
    names = declared(additions)
    found = client.describe_finished(home, names, client.formulas(additions), scratch)
    there = {operator.qualified for operator in found}
    if missing := sorted(set(names) - there):
        raise BaseRefusedError(
            "this torch does not have the operators of the additions",
            where=str(python),
            why="\n".join(missing),
            next="build it from these additions: scripts/build_torch.sh --additions DIR",
        )
    samples = additions.root / SAMPLES
    return Plan(
        tuple(grouped(found, additions)),
        samples if samples.is_file() else None,
        tuple(documented(additions.root)),
    )


def _found(python: Path) -> tuple[Path, Path]:
    """The directory that has torch/, and the code generator, which an overlay has a copy of."""
    outcome = process.run([python, "-c", _QUESTION], cwd=Path("/"), check=False)
    if outcome.returncode:
        raise BaseRefusedError(
            "no torch with its code generator is installed here",
            where=str(python),
            why=outcome.stderr.strip(),
            next="name an environment that has a torch with the additions: --env DIR",
        )
    site, torchgen = outcome.stdout.strip().splitlines()[-2:]
    return Path(site), Path(torchgen)


def declared(additions: Additions) -> list[str]:
    """Every function that the additions declare or have generated, 'name' or 'name.overload'."""
    entries = additions.native.entries
    names = [e.name for e in entries] + [name for e in entries for name in e.functions[1:]]
    if not names:
        raise AdditionsError(
            "no operator is declared",
            where=str(additions.native.path),
            next="name a directory whose additions declare one: --additions DIR",
        )
    return list(dict.fromkeys(names))


def grouped(found: Iterable[FinishedOperator], additions: Additions) -> list[OperatorGroup]:
    """One operator for each group of variants that somebody wrote, in the file's order."""
    kinds = get_args(Kind)
    groups: dict[str, list[FinishedOperator]] = {}
    for entry in found:
        groups.setdefault(entry.signature, []).append(entry)
    order = {name: number for number, name in enumerate(declared(additions))}
    made = []
    for group in groups.values():
        written = [entry for entry in group if not entry.generated]
        if not written:
            continue
        entry = min(written, key=lambda e: (kinds.index(e.kind), e.overload))
        others = tuple(e for e in group if e is not entry)
        made.append(OperatorGroup(entry, others, *formulas(group, additions)))
    return sorted(made, key=lambda planned: order[planned.entry.qualified])


def formulas(group: Iterable[FinishedOperator], additions: Additions) -> tuple[bool, bool]:
    """Whether there is a derivative formula, and whether there is one for forward mode."""
    names = {entry.qualified for entry in group}
    for entry in additions.derivatives.entries:
        if entry.name in names:
            arguments = entry.arguments
            keys = [(name, value) for key, value in entry.fields.items()
                    for name in words(key) if key not in FIELD_NAMES]  # fmt: skip
            return (
                any(name in arguments and value != "non_differentiable" for name, value in keys),
                any(name not in arguments for name, _ in keys),
            )
    return False, False


def documented(root: Path) -> Iterable[str]:
    """The names that the pages of the patches document, with the module that they are under."""
    for path in files.tree_files(root / "patches") if (root / "patches").is_dir() else []:
        if path.suffix == ".rst":
            yield from page_entries(path.read_text(encoding="utf-8"))


def page_entries(text: str) -> Iterable[str]:
    """What a page of reStructuredText lists in autosummary directives."""
    module, inside = "", False
    for line in text.splitlines():
        if found := re.match(r"\.\. (?:currentmodule|module):: *(\S+)", line):
            module, inside = found[1], False
        elif line.startswith(".. autosummary::"):
            inside = True
        elif line.strip() and not line.startswith(" "):
            inside = False
        elif inside and (entry := _ENTRY.match(line)):
            yield f"{module}.{entry[1].lstrip('~')}" if module else entry[1].lstrip("~")
