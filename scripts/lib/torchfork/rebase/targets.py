"""What additions are carried to: a pinned release, a wheel file, a git ref or a source tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..upstream import fetch, tree, wheel
from ..upstream.base import Base
from ..upstream.pins import Release, Releases

RELEASE, WHEEL, REF, TREE = "release", "wheel", "ref", "tree"
_VERSION = re.compile(r"v?\d+\.\d+(\.\d+)?")


@dataclass(frozen=True)
class Target:
    """One upstream to carry the additions to."""

    kind: str
    name: str  # as the report calls it
    place: str = ""  # a path, or a git ref
    release: Release | None = None

    @property
    def possible(self) -> str:
        """The tiers that can run: a source tree has no headers and no libraries."""
        return "abc" if self.kind in (REF, TREE) else "abcdef"


@dataclass(frozen=True)
class TargetOpening(wheel.Opening):
    """What is needed to open any target."""

    repository: str  # where git refs are fetched from
    runnable: bool  # the wheel must be one that this machine can run


def parse(words: Sequence[str], pins: Releases, *, everything: bool) -> list[Target]:
    """The targets that a command line names, in the order of the pins and then as given."""
    given = [_one(word, pins) for word in words]
    releases = [Target(RELEASE, r.version, release=r) for r in pins.releases] if everything else []
    named = {(target.kind, target.name): target for target in [*releases, *given]}
    if not named:
        raise UsageError(
            "rebase needs a release",
            next="--onto VERSION (or a wheel file, a source tree, a git ref), or --all; pinned are "
            + ", ".join(pins.versions),
        )
    order = {version: number for number, version in enumerate(pins.versions)}
    return sorted(named.values(), key=lambda target: order.get(target.name, len(order)))


def _one(word: str, pins: Releases) -> Target:
    path = Path(word)
    if word.endswith(".whl"):
        return Target(WHEEL, path.name.removesuffix(".whl"), place=word)
    if path.is_dir():
        return Target(TREE, path.resolve().name, place=str(path.resolve()))
    if _VERSION.fullmatch(word.partition("+")[0]):
        release = pins.get(word)
        return Target(RELEASE, release.version, release=release)
    return Target(REF, word, place=word)


def open_target(target: Target, opening: TargetOpening, progress: Callable[[str], None]) -> Base:
    """The target as a base: fetched, checked and unpacked."""
    if target.kind == REF:
        return tree.open_ref(target.place, opening.repository, opening.interpreter, opening.cache)
    if target.kind == TREE:
        return tree.open_base(Path(target.place), opening.interpreter, opening.cache)
    path = _wheel(target, opening, progress)
    return wheel.open_wheel(
        path,
        opening,
        # A wheel file that the user names may be a nightly: the report says which commit it is.
        unpinned=target.kind == WHEEL,
        foreign=not opening.runnable,
        progress=lambda done, total: progress(f"unpacking {100 * done // max(total, 1)} %"),
    )


def _wheel(target: Target, opening: TargetOpening, progress: Callable[[str], None]) -> Path:
    if target.release is None:
        return Path(target.place)
    choose = fetch.fetch_wheel if opening.runnable else fetch.fetch_smallest
    return choose(target.release, opening, lambda size: progress(f"fetching {size / 1e6:.0f} MB"))
