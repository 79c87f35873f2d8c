"""torchfork patch: what is in patches/, how it stands to a release, and how to edit it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..edits import base_patches as stage
from ..edits import patches
from ..edits.patches import Series, State, branching, refreshing, series, workbench
from ..edits.patches.header import Header, make
from ..edits.patches.refreshing import Known
from ..errors import PatchError
from ..upstream import pins
from ..upstream.wheel import VERSION_FILE, read_version_file
from ..util import cache
from ..util.ui import Ui
from .options import PROJECT
from .patch_target import Target, open_target

DEFAULT_BENCH = PROJECT / ".torchfork" / "patches"


def run_list(options: argparse.Namespace, ui: Ui) -> None:
    """Every patch; with a release, how it stands to it: PatchConflictError for a conflict."""
    found = patches.load(options.additions.resolve())
    console = Console(highlight=False)
    if options.torch is None:
        table = Table("patch", "releases", "lane", "reason", box=None, pad_edge=False)
        for entry in found.entries:
            table.add_row(entry.name, str(entry.versions) or "*", entry.lane, entry.reason)
        console.print(table)
        ui.note(f"{len(found.entries)} patches, {found.variants()} of them variants")
        return
    target = open_target(options.torch, options.lane, ui)
    report = _plan(found, target)
    table = Table("patch", f"torch {target.version}", "note", box=None, pad_edge=False)
    for outcome in report.outcomes:
        table.add_row(outcome.name, outcome.state.value, outcome.note)
    console.print(table)
    _attend(report, ui)
    report.require()


def _plan(found: Series, target: Target) -> patches.Report:
    return patches.plan(
        found, target.tree, target.version, target.lane, stage.origins(cache.directory())
    )


def _attend(report: patches.Report, ui: Ui) -> None:
    for line in report.attention():
        ui.warn(line)


def run_lint(options: argparse.Namespace, ui: Ui) -> None:
    """Every fault of the folder; raises the first of them when all are told."""
    found = patches.load(options.additions.resolve())
    faults = patches.lint(found, pins.load().versions)
    for fault in faults[1:]:
        ui.note(fault.render() + "\n")
    if faults:
        first = faults[0]
        raise PatchError(
            first.what, where=first.where, why=first.why,
            next=first.next + (f"\n({len(faults) - 1} more above)" if len(faults) > 1 else ""),
        )  # fmt: skip
    ui.note(f"{len(found.entries)} patches, nothing wrong")


def _applicable(options: argparse.Namespace, ui: Ui) -> patches.Report:
    """Plan for options.tree; raises unless every patch applies."""
    target = open_target(str(options.tree), options.lane, ui)
    report = _plan(patches.load(options.additions.resolve()), target)
    report.require()
    _attend(report, ui)
    return report


def run_apply(options: argparse.Namespace, ui: Ui) -> None:
    """Apply to a directory; nothing is written unless every patch applies."""
    report = _applicable(options, ui)
    if not options.check:
        patches.write(options.tree, report.texts)
    verb = "would change" if options.check else "changed"
    ui.note(
        f"{len(report.of(State.APPLIES, State.MERGED))} patches: {verb} {len(report.texts)} files"
    )
    for name in sorted(report.texts):
        ui.result(name)


def run_edit(options: argparse.Namespace, ui: Ui) -> None:
    """Make a workbench; raises PatchConflictError, with the conflict in it, if one does not fit."""
    found = patches.load(options.additions.resolve())
    target = open_target(options.torch or pins.load().default, options.lane, ui)
    with ui.step("lay out the workbench") as step:
        bench = workbench.start(options.bench, found, target.tree, target.version, target.lane)
        step.say(str(bench.root))
    _go_on(bench, found, ui)
    ui.note("edit, then git commit --amend, or --fixup and git rebase -i --autosquash; and then:")
    ui.note("scripts/torchfork patch refresh" + _bench_option(options))
    ui.result(str(bench.root))


def _bench_option(options: argparse.Namespace) -> str:
    return "" if options.bench == DEFAULT_BENCH else f" --bench {options.bench}"


def _go_on(bench: workbench.Bench, found: Series, ui: Ui) -> workbench.Bench:
    with ui.step("commit each patch") as step:
        done = workbench.go_on(bench, found, stage.origins(cache.directory()))
        count = len([e for e in found.entries if e.covers(done.version, done.lane)])
        step.say(f"{count - len(done.landed)} patches")
    for name in done.landed:
        ui.warn(f"{name}: upstream has it; end its range before this release, or drop it")
    return done


def run_refresh(options: argparse.Namespace, ui: Ui) -> None:
    """The commits of the workbench into patches/."""
    bench = workbench.load(options.bench)
    found = series.load(Path(bench.folder).parent)
    bench = _go_on(bench, found, ui)
    changed = refreshing.refresh(bench, found, _known(), options.variant or "")
    for path in changed:
        ui.result(str(path))
    ui.note(f"{len(changed)} files changed" if changed else "patches/ is what the commits say")


def _known() -> list[Known]:
    """The unpacked releases in the cache, which a refreshed patch must not break."""
    trees = stage.origins(cache.directory())
    told = [(tree.read(VERSION_FILE), tree) for tree in trees]
    return [
        Known(read_version_file(text, VERSION_FILE).version, tree)
        for text, tree in told
        if text is not None
    ]


def run_new(options: argparse.Namespace, ui: Ui) -> None:
    """What is not committed in the workbench becomes a patch at the end of the series."""
    bench = workbench.load(options.bench)
    found = series.load(Path(bench.folder).parent)
    said = _header(options)
    name = options.name.removesuffix(".patch") + ".patch"
    line = f"{name}  {options.versions}  {options.patch_lane}  # {options.subject}"
    path = refreshing.add(bench, found, name, said, line)
    ui.note(f"added at the end of {found.folder / series.SERIES}: {name}")
    ui.result(str(path))


def _header(options: argparse.Namespace) -> Header:
    fields = {"why": options.why, "until": options.until, "upstream": options.upstream}
    return make(options.subject, fields, f"patch new {options.name}")


def run_export(options: argparse.Namespace, ui: Ui) -> None:
    """A branch of the user's clone with a commit for each patch."""
    report = _applicable(options, ui)
    count = branching.export(report, options.tree, options.branch)
    ui.note(f"{count} commits on the branch {options.branch} of {options.tree}")
