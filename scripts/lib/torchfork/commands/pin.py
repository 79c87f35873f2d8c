"""torchfork pin: add wheels and whole releases to ci/releases.toml, each checked before."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ..errors import BaseRefusedError, UsageError
from ..upstream import fetch, git, index, interpreter, wheel
from ..upstream import pins as releases
from ..upstream.base import Interpreter
from ..upstream.git import UPSTREAM
from ..upstream.pins import Release, Releases
from ..util import cache
from ..util.ui import Ui


@dataclass(frozen=True)
class PinOptions:
    """What to pin."""

    wheel: Path | None
    new_release: bool
    versions: tuple[str, ...]
    find: bool
    repository: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("wheel", type=Path, nargs="?", help="a wheel file")
    parser.add_argument(
        "--new-release", action="store_true", help="also accept a release that is not there yet"
    )
    parser.add_argument(
        "--release", action="append", default=[], metavar="VERSION",
        help="find the release's wheels, hashes and commit by itself; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--find", action="store_true",
        help="every release of the index that is not pinned; prints the versions it pinned",
    )  # fmt: skip
    parser.add_argument("--repository", default=UPSTREAM, metavar="URL", help="has upstream's tags")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, ui: Ui) -> None:
    run(
        PinOptions(
            options.wheel,
            options.new_release,
            tuple(options.release),
            options.find,
            options.repository,
        ),
        ui,
    )


def run(options: PinOptions, ui: Ui) -> None:
    """Pin one wheel file, the releases that are named, or all that the index has."""
    pins = releases.load()
    if options.wheel:
        if options.versions or options.find:
            raise UsageError("name a wheel file or releases, not both")
        release = wheel.official(options.wheel, pins, new_release=options.new_release)
        pins = releases.add(pins, release)
        pin = release.wheels[0]
        ui.note(f"{pin.file} is pinned in {pins.path} (sha256 {pin.sha256[:16]}…)")
        return
    target = interpreter.probe(None, headers=False)
    versions = list(options.versions)
    if options.find:
        with ui.step("ask the index for releases") as step:
            versions += index.unpinned(index.available(target), pins)
            step.say(", ".join(versions) or "none that is not pinned")
    elif not versions:
        raise UsageError(
            "pin needs a wheel file, --release VERSION or --find",
            next="--find pins every release of the index that is not pinned yet",
        )
    for version in dict.fromkeys(versions):
        pins = _pin_release(version, pins, target, options.repository, ui)


def _pin_release(
    version: str, pins: Releases, target: Interpreter, repository: str, ui: Ui
) -> Releases:
    if version in pins.versions:
        ui.note(f"torch {version} is pinned already")
        return pins
    with ui.step(f"find the wheels of {version}") as step:
        found = index.wheels(version, pins, target, lambda text: step.advance(0, 0, text))
        step.say(f"{len(found)} wheels")
    with ui.step("read the commit from one") as step:
        known = index.tentative(pins, version, found)
        path = fetch.fetch_smallest(known.get(version), target, known, cache.directory())
        said = wheel.read_version(path)
        step.say(f"{said.git_version} ({path.name})")
    with ui.step("compare it with upstream's tag") as step:
        tagged = git.tag_commit(version, repository)
        require_same(version, said.git_version, tagged, path)
        step.say("the same" if tagged else f"{repository} cannot be reached: not compared")
    pins = releases.add(pins, Release(version, said.git_version, found))
    ui.note(f"torch {version} is pinned in {pins.path}")
    ui.result(version)
    return pins


def require_same(version: str, commit: str, tagged: str | None, path: Path) -> None:
    """Refuse a wheel whose commit is not the one of the tag, where the tag is known."""
    if tagged is not None and tagged != commit:
        raise BaseRefusedError(
            f"the wheel of torch {version} is not built from upstream's tag",
            where=str(path),
            why=f"git_version: {commit}\nv{version}:     {tagged}",
            next="find out which of the two is right before pinning anything",
        )
