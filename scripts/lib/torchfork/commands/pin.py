"""torchfork releases and pin: ci/releases.toml listed, and added to after checks."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import replace
from pathlib import Path

from ..errors import BaseRefusedError, UsageError
from ..upstream import fetch, git, wheel
from ..upstream import pins as releases
from ..upstream.base import Interpreter, probe
from ..upstream.pins import Release, Releases, python_version
from ..util import cache
from ..util.ui import Ui


def add_releases_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork releases`."""
    parser.add_argument("--json", action="store_true", help="as a JSON list")
    parser.add_argument(
        "--pythons", metavar="VERSION",
        help="the Pythons that a release has wheels for on this machine ('': of the default one)",
    )  # fmt: skip
    parser.set_defaults(run=_list)


def add_pin_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork pin`."""
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
    parser.add_argument(
        "--repository", default=git.UPSTREAM, metavar="URL", help="has upstream's tags"
    )
    parser.set_defaults(run=_pin)


def _list(options: argparse.Namespace, ui: Ui) -> None:
    """Print the versions on stdout, oldest first: of torch, or of Python."""
    pins = releases.load()
    versions = pins.versions
    lines = [
        f"{release.version:<8} {release.commit}  {len(release.wheels)} wheels"
        + ("  (default)" if release.version == pins.default else "")
        for release in pins.releases
    ]
    if options.pythons is not None:
        tags = pins.get(options.pythons or None).python_tags(platform.system(), platform.machine())
        lines = versions = list(map(python_version, tags))
    for line in [json.dumps(versions)] if options.json else lines:
        ui.result(line)


def _pin(options: argparse.Namespace, ui: Ui) -> None:
    """Pin one wheel file, the releases that are named, or all that the index has."""
    pins = releases.load()
    if options.wheel:
        if options.release or options.find:
            raise UsageError(
                "name a wheel file or releases, not both", next="run pin once for each"
            )
        release = wheel.official(options.wheel, pins, new_release=options.new_release)
        pins = releases.add(pins, release)
        pin = release.wheels[0]
        ui.note(f"{pin.file} is pinned in {pins.path} (sha256 {pin.sha256[:16]}…)")
        return
    target = probe(None, headers=False)
    versions = list(options.release)
    if options.find:
        with ui.step("ask the index for releases") as step:
            versions += fetch.unpinned(fetch.available(target), pins)
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
        wheels = fetch.resolve_wheels(version, pins, target, step.show)
        step.say(f"{len(wheels)} wheels")
    with ui.step("read the commit from one") as step:
        # Pins with the release, for fetching one of its wheels; its commit is not known yet.
        tentative = Release(version, "0" * 40, wheels)
        known = replace(pins, releases=(*pins.releases, tentative))
        path = fetch.fetch_smallest(tentative, wheel.Opening(target, known, cache.directory()))
        commit = wheel.read_version(path).git_version
        step.say(f"{commit} ({path.name})")
    with ui.step("compare it with upstream's tag") as step:
        tagged = git.tag_commit(version, repository)
        require_same(version, commit, tagged, path)
        step.say("the same" if tagged else f"{repository} cannot be reached: not compared")
    pins = releases.add(pins, Release(version, commit, wheels))
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
