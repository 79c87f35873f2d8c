"""torchfork build and check: additions onto a base, and what comes of it."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..additions import ranges
from ..additions.load import Additions
from ..additions.load import load as load_additions
from ..errors import UsageError
from ..pipelines import workdir
from ..state import installed_torch
from ..upstream.base import Base
from ..upstream.wheel import grafted_version
from ..util import cache, files
from ..util.ui import Ui
from . import build_source
from .options import (
    PROJECT,
    BaseOptions,
    add_additions,
    add_base,
    add_work,
    base_of,
    directory,
    open_base,
    positive,
)

if TYPE_CHECKING:
    from ..codegen.model import Manifest
    from ..pipelines.graft import Grafted


@dataclass(frozen=True)
class BuildOptions:
    """What to build and where to put it."""

    base: BaseOptions
    additions: Path
    out: Path
    number: int  # the N of the local version's .extN
    develop: bool
    verify: bool
    work: Path
    overlay: bool
    name: str | None  # of the overlay's distribution


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `torchfork build`, in both build modes."""
    add_base(parser)
    add_additions(parser)
    add_work(parser)
    parser.add_argument(
        "--out",
        type=directory,
        default=PROJECT / "dist",
        metavar="DIR",
        help="where the wheel goes",
    )
    parser.add_argument(
        "--number", type=positive, default=1, metavar="N", help="the N of the version's .extN"
    )
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
    build_source.add_arguments(parser)
    parser.set_defaults(run=_run)


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
    base = open_base(base_of(options), ui, headers=False)
    additions = ranges.for_release(additions, base.version)
    gated = header_check.check_headers(base, cache.directory(), ui)
    layout = workdir.for_base(base, additions, options.work.absolute())
    with workdir.locked(layout, ui):
        context = graft.BuildContext(base, additions, layout)
        merged = graft.merge_and_validate(context, gated.upstream, ui)
    ui.note(f"\n{options.additions} is fine for torch {base.version}; {_added(merged.manifest)}")


def _run(options: argparse.Namespace, ui: Ui) -> None:
    if options.from_source:
        build_source.build(options, ui)
        return
    build_source.refuse_options(options)
    if options.undo:
        undo(options.python, ui)
        return
    chosen = BuildOptions(
        base=base_of(options),
        additions=options.additions,
        out=options.out.absolute(),
        number=options.number,
        develop=options.develop,
        verify=not options.no_verify,
        work=options.work.absolute(),
        overlay=options.overlay,
        name=options.name,
    )
    run(chosen, ui)


def run(options: BuildOptions, ui: Ui) -> None:
    """Build, pack and verify; or, with --develop, build and change the environment."""
    additions = load_additions(options.additions)
    base = open_base(_with_installed(options), ui)
    additions = ranges.for_release(additions, base.version)
    layout = workdir.for_base(base, additions, options.work)
    # Held until the wheel is packed: another run would change what it is packed from.
    with workdir.locked(layout, ui):
        # Before anything reads them: what is edited during the build must count as changed.
        inputs = _inputs(options, base, additions)
        known = None if options.develop else workdir.up_to_date(layout, inputs, options.out)
        if known is not None:
            ui.note(f"nothing to do: {known} is up to date")
            ui.result(str(known))
            return
        # Only now: they take longer to import than a run with nothing to do takes.
        from ..codegen import header_check
        from ..pipelines import graft

        gated = header_check.check_headers(base, cache.directory(), ui)
        grafted = graft.build(graft.BuildContext(base, additions, layout), gated, ui)
        if grafted.cuda_note and base.cuda:
            ui.warn(grafted.cuda_note)
        if options.develop:
            _develop(grafted, ui)
        else:
            _deliver(options, grafted, inputs, ui)


def _with_installed(options: BuildOptions) -> BaseOptions:
    """--develop is about the torch that is installed; naming another base contradicts it."""
    given = options.base
    if not options.develop:
        return given
    if options.overlay:
        raise UsageError(
            "--develop and --overlay exclude each other",
            why="one changes the environment's torch, the other goes beside an unchanged one",
            next="leave one of them out",
        )
    if given.torch or (given.base and given.base != "installed"):
        raise UsageError(
            "--develop changes the torch that is installed, so no other base can be named",
            next="leave out --torch and --base, or leave out --develop to make a wheel",
        )
    return BaseOptions(None, "installed", given.python, given.unpinned)


def _develop(grafted: Grafted, ui: Ui) -> None:
    with ui.step("put it into the environment") as step:
        changes = installed_torch.install(grafted.base, grafted.overlay, on_wait=ui.warn)
        step.say(f"{len(changes.written)} files written, {changes.unchanged} as they were")
    python = grafted.base.interpreter.executable
    ui.note(f"\n{_added(grafted.manifest)}")
    ui.note(f"in {changes.root}, for {python}")
    ui.note("undo it with: scripts/build_torch.sh --undo")


def undo(python: str | None, ui: Ui) -> None:
    """torchfork build --undo: put the environment's torch back as its wheel brought it."""
    from ..upstream import interpreter

    target = interpreter.probe(python, headers=False)
    with ui.step("restore the original files") as step:
        changes = installed_torch.undo(target, on_wait=ui.warn)
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


def _deliver(options: BuildOptions, grafted: Grafted, inputs: str, ui: Ui) -> None:
    from ..wheel import overlay, pack, verify

    base = _with_true_tag(grafted, ui)
    with ui.step("pack the wheel") as step:
        if options.overlay:
            name = overlay.named(options.additions, options.name)
            wheel = overlay.pack(base, grafted.overlay, name, options.out, pack.epoch_from())
        else:
            version = grafted_version(base.version, options.number)
            wheel = pack.pack(base, grafted.overlay, version, options.out, pack.epoch_from())
        changed = len(files.tree_files(grafted.overlay))
        step.say(f"{wheel.stat().st_size / 1e6:.1f} MB, {changed} files of it new or changed")
    if options.verify:
        check = verify.verify_overlay if options.overlay else verify.verify
        with ui.step("verify in a clean environment") as step:
            report = check(
                wheel, base, grafted.manifest, options.work / "verify", cache.directory(),
                say=lambda text: step.advance(0, 0, text), on_wait=ui.warn,
            )  # fmt: skip
            step.say(
                f"imports; {report.upstream_operators} upstream schemas unchanged, "
                f"{len(report.added)} added; {report.files} hashes hold"
            )
    workdir.keep_delivered(grafted.layout, inputs, wheel)
    _announce(wheel, grafted, base, ui)


def _added(manifest: Manifest) -> str:
    names = manifest.base_names
    return "added: " + ", ".join(names) if names else "added: nothing"


def _announce(wheel: Path, grafted: Grafted, base: Base, ui: Ui) -> None:
    growth = wheel.stat().st_size - (base.wheel.stat().st_size if base.wheel else 0)
    size = f"{wheel.stat().st_size / 1e6:.1f} MB"
    if base.wheel and growth > 0:
        size += f", {growth / 1e6:+.2f} MB"
    shown = Path(os.path.relpath(wheel)) if wheel.is_relative_to(Path.cwd()) else wheel
    ui.note(f"\nwheel:   {shown} ({size})")
    ui.note(_added(grafted.manifest).replace("added: ", "added:   ", 1))
    if grafted.cuda_note:
        ui.note(f"CUDA:    none ({grafted.cuda_note})")
    ui.note(f"install: python -m pip install {shlex.quote(str(shown))}")
    ui.result(str(wheel))


def _inputs(options: BuildOptions, base: Base, additions: Additions) -> str:
    """Everything that the wheel's bytes depend on."""
    names = ("USE_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CXX", "SOURCE_DATE_EPOCH")
    return files.sha256_text(
        base.identity, additions.fingerprint(), str(additions.root), workdir.tooling_fingerprint(),
        str(base.interpreter.executable), str(options.number), str(options.verify),
        str(options.overlay), options.name or "",
        *(os.environ.get(name, "") for name in names),
    )  # fmt: skip
