"""torchfork build --from-source: fetch a tree, apply the additions, build all of it, verify."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..additions import ranges
from ..additions.load import Additions
from ..additions.load import load as load_additions
from ..errors import UsageError
from ..pipelines import workdir
from ..pipelines.workdir import tooling_fingerprint
from ..upstream import interpreter, pins
from ..util import cache, files
from ..util.ui import Ui

if TYPE_CHECKING:
    from ..codegen.model import Manifest
    from ..pipelines.source_build import Environment
    from ..upstream.sources import SourceCheckout


@dataclass(frozen=True)
class SourceOptions:
    """What to build and how."""

    source: str  # 'git', 'debian' or a path
    torch: str | None
    git_url: str | None
    python: str | None
    unpinned: bool
    additions: Path
    out: Path
    number: int
    verify: bool
    work: Path
    fresh: bool
    until: str | None  # stop after 'fetch' or 'apply'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of build --from-source."""
    group = parser.add_argument_group("from source")
    group.add_argument(
        "--from-source", action="store_true",
        help="put the additions into PyTorch's sources and build all of it (up to an hour or two)",
    )  # fmt: skip
    group.add_argument(
        "--source", metavar="git|debian|PATH", default=None,
        help="where the sources come from (default: git); PATH is a tree or a tarball",
    )  # fmt: skip
    group.add_argument("--git-url", metavar="URL", help="another repository than upstream's")
    group.add_argument(
        "--fresh", action="store_true",
        help="delete a build directory that was made with other settings",
    )  # fmt: skip
    group.add_argument(
        "--until", choices=("fetch", "apply"), help="stop when the tree is there, or has ours in it"
    )


def refuse_options(options: argparse.Namespace) -> None:
    """Refuse these options where --from-source is not given."""
    for name in ("source", "git_url", "fresh", "until"):
        if getattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is about building from source",
                next="add --from-source",
            )


def build(options: argparse.Namespace, ui: Ui) -> None:
    """torchfork build --from-source."""
    for name in ("develop", "undo", "base", "overlay"):
        if getattr(options, name):
            raise UsageError(
                f"--from-source and --{name} exclude each other",
                why="a source build makes a wheel, and starts from sources",
                next="leave one of them out",
            )
    chosen = SourceOptions(
        source=options.source or "git",
        torch=options.torch,
        git_url=options.git_url,
        python=options.python,
        unpinned=options.unpinned,
        additions=options.additions,
        out=options.out.absolute(),
        number=options.number,
        verify=not options.no_verify,
        work=options.work.absolute(),
        fresh=options.fresh,
        until=options.until,
    )
    run(chosen, ui)


def run(options: SourceOptions, ui: Ui) -> None:
    """All steps, or those up to options.until."""
    # Only now: a graft that has nothing to do takes less time than importing them.
    from ..pipelines import source, source_build
    from .tree import require_clean

    additions = load_additions(options.additions)
    target = interpreter.probe(options.python)
    opened = open_source(options, ui)
    release = require_clean(opened.tree, unpinned=options.unpinned)
    if options.until == "fetch":
        ui.result(str(opened.tree.root))
        return
    additions = ranges.for_release(additions, opened.tree.version)
    source.require_same_additions(opened.tree, additions)
    layout = workdir.for_tree(opened.tree, additions, options.work)
    with workdir.locked(layout, ui):
        planned = source.plan(opened.tree, additions, layout, ui)
        source.put_in(opened.tree, planned, additions, ui)
        if options.until == "apply":
            ui.result(str(opened.tree.root))
            return
        python = source_build.make_environment(opened, target, release, _trees(options), ui)
        version = source_build.wheel_version(opened, options.number)
        environment = source_build.Environment(
            python, source_build.resolve_settings(opened, python, version)
        )
        inputs = _inputs(opened, environment, additions, options)
        known = workdir.up_to_date(layout, inputs, options.out)
        if known:
            ui.note(f"nothing to do: {known} is up to date")
            ui.result(str(known))
            return
        built = source_build.build(
            opened, environment, additions, layout, fresh=options.fresh, ui=ui
        )
        wheel, base = source_build.finish(
            opened, built, environment, target, layout, options.out, ui
        )
        source_build.check_version(base, environment.value("PYTORCH_BUILD_VERSION"))
        if options.verify:
            source_build.verify_wheel(
                wheel, base, planned.manifest, planned.upstream.schemas, options.work,
                cache.directory(), ui,
            )  # fmt: skip
        workdir.keep_delivered(layout, inputs, wheel)
    _announce(wheel, planned.manifest, ui)


def open_source(options: SourceOptions, ui: Ui) -> SourceCheckout:
    """Fetch or find the tree that the options name."""
    from ..upstream import sources

    wanted = sources.Wanted(options.source, options.torch, options.git_url)
    with ui.step("fetch the sources") as step:
        opened = sources.open_source(
            wanted, pins.load(), _trees(options), cache.directory(), os.environ, step.advance,
            ui.warn,
        )  # fmt: skip
        step.say(opened.described)
    return opened


def _trees(options: SourceOptions) -> Path:
    return options.work / "source"


def _inputs(
    opened: SourceCheckout, environment: Environment, additions: Additions, options: SourceOptions
) -> str:
    """Everything that the wheel's bytes depend on."""
    chosen = [f"{s.name}={s.value}" for s in environment.settings if s.name != "MAX_JOBS"]
    return files.sha256_text(
        str(opened.tree.root), opened.tree.commit or "", additions.fingerprint(),
        str(additions.root), tooling_fingerprint(), str(options.verify), *chosen,
    )  # fmt: skip


def _announce(wheel: Path, manifest: Manifest, ui: Ui) -> None:
    shown = Path(os.path.relpath(wheel)) if wheel.is_relative_to(Path.cwd()) else wheel
    names = manifest.base_names
    ui.note(f"\nwheel:   {shown} ({wheel.stat().st_size / 1e6:.1f} MB)")
    ui.note(f"added:   {', '.join(names) or 'nothing'}")
    ui.note(f"install: python -m pip install {shlex.quote(str(shown))}")
    ui.result(str(wheel))
