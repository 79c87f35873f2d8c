"""torchfork build and check: additions onto a base, and what comes of it."""

from __future__ import annotations

import argparse
import os
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..additions import ranges
from ..additions.load import Additions
from ..additions.load import load as load_additions
from ..codegen import build_dir
from ..errors import UsageError
from ..upstream.base import Base
from ..upstream.wheel import grafted_version
from ..util import cache, files
from ..util.ui import Ui
from .options import (
    PROJECT,
    add_additions,
    add_base,
    add_number,
    add_work,
    exclusive,
    open_base,
    place,
)

if TYPE_CHECKING:
    from ..codegen.build_dir import BuildDir
    from ..codegen.model import Manifest
    from ..pipelines.graft import Grafted
    from ..wheel.overlay import Name
    from ..wheel.verify import Report

# Options that only a build from source has.
_FROM_SOURCE = ("source", "git_url", "fresh", "until")


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork build`, in both build modes."""
    add_base(parser)
    add_additions(parser)
    add_work(parser)
    parser.add_argument(
        "--out", type=place, default=PROJECT / "dist", metavar="DIR", help="where the wheel goes"
    )
    add_number(parser)
    parser.add_argument(
        "--develop", action="store_true",
        help="put the graft into the current environment's torch instead of making a wheel",
    )  # fmt: skip
    parser.add_argument(
        "--undo", action="store_true", help="take a --develop graft out again, bit for bit"
    )
    parser.add_argument(
        "--overlay", action="store_true",
        help="make a small wheel of the difference alone, which requires the official torch",
    )  # fmt: skip
    parser.add_argument(
        "--name", metavar="NAME", help="what the overlay is called (default: overlay.toml's name)"
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not install and try the finished wheel"
    )
    group = parser.add_argument_group("from source")
    group.add_argument(
        "--from-source", action="store_true",
        help="put the additions into PyTorch's sources and build all of it (up to an hour or two)",
    )  # fmt: skip
    group.add_argument(
        "--source", metavar="git|debian|PATH",
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
    parser.set_defaults(run=build)


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork check`."""
    add_base(parser)
    add_additions(parser)
    add_work(parser)
    parser.set_defaults(run=check)


def check(options: argparse.Namespace, ui: Ui) -> None:
    """Read, merge and validate additions against a base."""
    from ..codegen import header_check
    from ..pipelines import graft

    additions = load_additions(options.additions)
    base = open_base(options, ui, headers=False)
    additions = ranges.for_release(additions, base.version)
    checked = header_check.check_headers(base, cache.directory(), ui)
    layout = build_dir.for_base(base, additions, options.work)
    with build_dir.locked(layout):
        context = graft.BuildContext(base, additions, layout)
        merged = graft.merge_and_validate(context, checked.upstream, ui)
        graft.try_generator(context, merged, ui)
    ui.note(
        f"\n{options.additions} is fine for torch {base.version}; added: {_names(merged.manifest)}"
    )


def build(options: argparse.Namespace, ui: Ui) -> None:
    """Build in the mode that the options name, or undo a --develop graft."""
    exclusive(
        options, "from_source", "develop", "undo", "base", "overlay", "name",
        why="a source build makes a wheel, and starts from sources",
    )  # fmt: skip
    if options.from_source:
        from . import source  # takes longer to import than a graft with nothing to do takes

        source.build(options, ui)
        return
    for name in _FROM_SOURCE:
        if getattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is about building from source",
                next="add --from-source",
            )
    if options.undo:
        undo(options.python, ui)
        return
    if options.develop:
        exclusive(
            options, "develop", "overlay",
            why="one changes the environment's torch, the other goes beside an unchanged one",
        )  # fmt: skip
        if options.torch or options.base not in (None, "installed"):
            raise UsageError(
                "--develop changes the torch that is installed, so no other base can be named",
                next="leave out --torch and --base, or leave out --develop to make a wheel",
            )
        options.base = "installed"
    graft(options, ui)


def graft(options: argparse.Namespace, ui: Ui) -> None:
    """Graft, pack and verify; or, with --develop, graft and change the environment."""
    additions = load_additions(options.additions)
    overlay = _overlay_name(options)
    base = open_base(options, ui)
    if overlay:
        _require_base_of_overlay(base, verified=not options.no_verify)
    additions = ranges.for_release(additions, base.version)
    layout = build_dir.for_base(base, additions, options.work)
    # Held until the wheel is packed: another run would change what it is packed from.
    with build_dir.locked(layout):
        # Before anything reads them: what is edited during the build must count as changed.
        inputs = _inputs(options, base, additions, overlay)
        if not options.develop and is_up_to_date(layout, inputs, options, ui):
            return
        # Only now: they take longer to import than a run with nothing to do takes.
        from ..codegen import header_check
        from ..pipelines import graft as pipeline

        checked = header_check.check_headers(base, cache.directory(), ui)
        context = pipeline.BuildContext(base, additions, layout)
        grafted = pipeline.build(context, checked, ui, here=options.develop)
        if grafted.cuda_note and base.cuda:
            ui.warn(grafted.cuda_note)
        if options.develop:
            _develop(grafted, ui)
        else:
            wheel = _deliver(options, grafted, overlay, ui)
            build_dir.keep_delivered(layout, inputs, wheel)


def _overlay_name(options: argparse.Namespace) -> Name | None:
    """What the overlay is called, None where none is made; refused before anything is fetched."""
    if not options.overlay:
        if options.name:
            raise UsageError("--name is what an overlay is called", next="add --overlay")
        return None
    from ..wheel import overlay

    return overlay.named(options.additions, options.name)


def _require_base_of_overlay(base: Base, *, verified: bool) -> None:
    """Refuse a base before the build that no overlay is made for, or can be verified beside."""
    from ..wheel import overlay, verify

    overlay.require_linux(base)
    if verified:
        verify.require_wheel(base)


def is_up_to_date(layout: BuildDir, inputs: str, options: argparse.Namespace, ui: Ui) -> bool:
    """Whether an earlier run made the wheel of these inputs; says so."""
    known = build_dir.up_to_date(layout, inputs, options.out)
    if known is None:
        return False
    ui.note(f"nothing to do: {known} is up to date")
    ui.result(str(known))
    return True


def _develop(grafted: Grafted, ui: Ui) -> None:
    from ..state import installed_torch

    with ui.step("put it into the environment") as step:
        changes = installed_torch.install(grafted.base, grafted.overlay)
        step.say(f"{len(changes.written)} files written, {changes.unchanged} as they were")
    ui.note(f"\nadded: {_names(grafted.manifest)}")
    ui.note(f"in {changes.root}, for {grafted.base.interpreter.executable}")
    ui.note("undo it with: scripts/build_torch.sh --undo")


def undo(python: str | None, ui: Ui) -> None:
    """torchfork build --undo: put the environment's torch back as its wheel brought it."""
    from ..state import installed_torch
    from ..upstream.base import probe

    target = probe(python, headers=False)
    with ui.step("restore the original files") as step:
        changes = installed_torch.undo(target)
        step.say(f"{len(changes.restored)} restored, {len(changes.removed)} removed")


def _with_true_tag(grafted: Grafted, ui: Ui) -> Base:
    """The base with a platform tag that the new libraries keep.

    Some official tags promise less than their own libraries need (2.6.0 says manylinux1); only what
    the graft adds to that is corrected.
    """
    from ..wheel import repair

    base = grafted.base
    needed = repair.needed_glibc(grafted.libraries)
    tag = repair.raised_tag(base.wheel_tag, needed)
    if tag == base.wheel_tag or needed <= repair.needed_glibc([base.torch_cpu]):
        return base
    ui.warn(
        f"the kernels need glibc {needed[0]}.{needed[1]}, more than the base does; the wheel is "
        f"tagged {tag.rpartition('-')[2]} (compile on an older system for less)"
    )
    return replace(base, wheel_tag=tag)


def _deliver(options: argparse.Namespace, grafted: Grafted, overlay: Name | None, ui: Ui) -> Path:
    """Pack, verify and announce the wheel."""
    from ..wheel import pack, verify

    base = _with_true_tag(grafted, ui)
    with ui.step("pack the wheel") as step:
        if overlay:
            from ..wheel.overlay import pack as pack_overlay  # brings a parser of TOML

            wheel = pack_overlay(base, grafted.overlay, overlay, options.out, pack.epoch_from())
        else:
            version = grafted_version(base.version, options.number)
            wheel = pack.pack(base, grafted.overlay, version, options.out, pack.epoch_from())
        changed = len(files.tree_files(grafted.overlay))
        step.say(f"{wheel.stat().st_size / 1e6:.1f} MB, {changed} files of it new or changed")
    if not options.no_verify:
        in_clean_environment(
            ui,
            lambda say: verify.verify(
                wheel, base, grafted.manifest, options.work / "verify", cache.directory(),
                say=say,
            ),
        )  # fmt: skip
    growth = wheel.stat().st_size - base.wheel.stat().st_size if base.wheel else 0
    beside = base.metadata_version if overlay else ""
    announce(wheel, grafted.manifest, ui, max(0, growth), grafted.cuda_note, beside)
    return wheel


def in_clean_environment(ui: Ui, verify: Callable[[Callable[[str], None]], Report]) -> None:
    """Run a verification as a step. verify: gets what shows how far it is."""
    with ui.step("verify in a clean environment") as step:
        report = verify(step.show)
        step.say(
            f"imports; {report.upstream_operators} upstream schemas unchanged, "
            f"{len(report.added)} added; {report.files} hashes hold"
        )


def announce(
    wheel: Path, manifest: Manifest, ui: Ui, growth: int = 0, cuda_note: str = "", beside: str = ""
) -> None:
    """Say where the wheel is, what was added, how to install and keep it; its path on stdout.

    beside: the version of the official torch that an overlay goes beside.
    """
    from ..wheel import index

    size = f"{wheel.stat().st_size / 1e6:.1f} MB" + (f", {growth / 1e6:+.2f} MB" if growth else "")
    kept, uv = index.constrain(wheel, beside or wheel.name.split("-")[1])
    ui.note(f"\nwheel:   {_shown(wheel)} ({size})")
    ui.note(f"added:   {_names(manifest)}")
    if cuda_note:
        ui.note(f"CUDA:    none ({cuda_note})")
    official = f"'torch=={beside}' " if beside else ""
    ui.note(f"install: python -m pip install {official}{_shown(wheel)}")
    ui.note(f"keep it: python -m pip install --constraint {_shown(kept)} …")
    ui.note("with uv, in pyproject.toml:")
    ui.note(textwrap.indent(uv, "  "))
    ui.result(str(wheel))


def _shown(path: Path) -> str:
    """A path as it can be pasted here."""
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))


def _names(manifest: Manifest) -> str:
    return ", ".join(manifest.base_names) or "nothing"


def _inputs(
    options: argparse.Namespace, base: Base, additions: Additions, overlay: Name | None
) -> str:
    """Everything that the wheel's bytes depend on."""
    names = ("USE_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CXX", "SOURCE_DATE_EPOCH")
    return files.sha256_text(
        base.identity, additions.fingerprint(), str(additions.root),
        build_dir.tooling_fingerprint(), str(base.interpreter.executable), str(options.number),
        str(options.no_verify), str(overlay),
        *(os.environ.get(name, "") for name in names),
    )  # fmt: skip
