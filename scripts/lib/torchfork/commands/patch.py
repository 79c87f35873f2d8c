"""torchfork patch: what is in patches/, how it stands to a release, and how to edit it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..edits import patches
from ..edits.patches import BuildMode, Report, Series, State, Tree, workbench
from ..edits.patches.series import SERIES, make_header
from ..errors import UsageError
from ..rebase import targets
from ..upstream import pins
from ..upstream import tree as source_trees
from ..upstream.base import probe
from ..upstream.git import UPSTREAM
from ..upstream.wheel import VERSION_FILE, read_version_file
from ..util import cache
from ..util.ui import Ui
from .options import STATE, add_additions, add_common, path

Run = Callable[[argparse.Namespace, Ui], None]
DEFAULT_BENCH = STATE / "patches"


@dataclass(frozen=True)
class PatchTarget:
    """Upstream's files, their version, and the build mode whose layout they have."""

    tree: Tree
    version: str
    build_mode: BuildMode


def open_target(word: str, mode: BuildMode | None, ui: Ui) -> PatchTarget:
    """What a command line names; a release is fetched as the smallest wheel that has its files.

    mode: another build mode than the layout suggests.
    """
    if Path(word).is_dir():
        return _open_directory(Path(word), mode)
    pinned = pins.load()
    [target] = targets.parse([word], pinned, everything=False)
    python = probe(None, headers=False)
    with ui.step("open upstream") as step:
        opening = targets.TargetOpening(python, pinned, cache.directory(), UPSTREAM, runnable=False)
        base = targets.open_target(target, opening, step.show)
        step.say(f"torch {base.version}")
    return PatchTarget(patches.directory(base.root), base.version, mode or "graft")


def _open_directory(root: Path, mode: BuildMode | None) -> PatchTarget:
    tree = patches.directory(root)
    if (root / "aten").is_dir():
        return PatchTarget(tree, source_trees.open_tree(root).version, mode or "source")
    text = tree.read(VERSION_FILE)
    if text is None:
        raise UsageError(
            "this directory has no PyTorch",
            where=str(root),
            why=f"neither aten/ as sources have it nor {VERSION_FILE} as site-packages has it",
            next="name the top of a source tree, or the directory that holds torch/",
        )
    version = read_version_file(text, str(root / VERSION_FILE)).version
    return PatchTarget(tree, version, mode or "graft")


def run_list(options: argparse.Namespace, ui: Ui) -> None:
    """Every patch; with a release, how it stands to it: PatchConflictError for a conflict."""
    series = patches.load(options.additions.resolve())
    console = Console(highlight=False)
    if options.torch is None:
        table = Table("patch", "releases", "lane", "reason", box=None, pad_edge=False)
        for patch in series.patches:
            table.add_row(patch.name, str(patch.versions) or "*", patch.build_mode, patch.reason)
        console.print(table)
        ui.note(f"{len(series.patches)} patches, {series.variants()} of them variants")
        return
    report = _plan(series, open_target(options.torch, options.build_mode, ui))
    table = Table("patch", f"torch {report.version}", "note", box=None, pad_edge=False)
    for outcome in report.outcomes:
        table.add_row(outcome.name, outcome.state.value, outcome.note)
    console.print(table)
    _warn(report, ui)
    report.require()


def _plan(series: Series, target: PatchTarget) -> Report:
    ancestors = patches.origins(cache.directory())
    return patches.plan(series, target.tree, target.version, target.build_mode, ancestors)


def _warn(report: Report, ui: Ui) -> None:
    for line in report.attention():
        ui.warn(line)


def run_lint(options: argparse.Namespace, ui: Ui) -> None:
    """Raises every fault of the folder as one error."""
    series = patches.load(options.additions.resolve())
    patches.check(series, pins.load().versions)
    ui.note(f"{len(series.patches)} patches, nothing wrong")


def _applicable(options: argparse.Namespace, ui: Ui) -> Report:
    """Plan for options.tree; raises unless every patch applies."""
    target = open_target(str(options.tree), options.build_mode, ui)
    report = _plan(patches.load(options.additions.resolve()), target)
    report.require()
    _warn(report, ui)
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
    series = patches.load(options.additions.resolve())
    target = open_target(options.torch or pins.load().default, options.build_mode, ui)
    with ui.step("lay out the workbench") as step:
        bench = workbench.start(
            options.bench, series, target.tree, target.version, target.build_mode
        )
        step.say(str(bench.root))
    _commit_pending(bench, series, ui)
    ui.note("edit, then git commit --amend, or --fixup and git rebase -i --autosquash; and then:")
    bench_option = "" if options.bench == DEFAULT_BENCH else f" --bench {options.bench}"
    ui.note(f"scripts/torchfork patch refresh{bench_option}")
    ui.result(str(bench.root))


def _commit_pending(bench: workbench.Bench, series: Series, ui: Ui) -> workbench.Bench:
    with ui.step("commit each patch") as step:
        done = workbench.commit_pending(bench, series, patches.origins(cache.directory()))
        covered = [p for p in series.patches if p.covers(done.version, done.build_mode)]
        step.say(f"{len(covered) - len(done.landed)} patches")
    for name in done.landed:
        ui.warn(f"{name}: upstream has it; end its range before this release, or drop it")
    return done


def run_refresh(options: argparse.Namespace, ui: Ui) -> None:
    """The commits of the workbench into patches/."""
    bench = workbench.open_bench(options.bench)
    series = patches.load(Path(bench.folder).parent)
    bench = _commit_pending(bench, series, ui)
    changed = workbench.refresh(bench, series, _known_releases())
    for file in changed:
        ui.result(str(file))
    ui.note(f"{len(changed)} files changed" if changed else "patches/ is what the commits say")


def _known_releases() -> dict[str, Tree]:
    """The unpacked releases in the cache, which a refreshed patch must not break."""
    trees = patches.origins(cache.directory())
    texts = ((tree.read(VERSION_FILE), tree) for tree in trees)
    return {
        read_version_file(text, VERSION_FILE).version: tree
        for text, tree in texts
        if text is not None
    }


def run_new(options: argparse.Namespace, ui: Ui) -> None:
    """What is not committed in the workbench becomes a patch at the end of the series."""
    bench = workbench.open_bench(options.bench)
    series = patches.load(Path(bench.folder).parent)
    fields = {"why": options.why, "until": options.until, "upstream": options.upstream}
    header = make_header(options.subject, fields, f"patch new {options.name}")
    name = options.name.removesuffix(".patch") + ".patch"
    line = f"{name}  {options.versions}  {options.build_mode}  # {header.subject}"
    file = workbench.add(bench, series, name, header, line)
    ui.note(f"added at the end of {series.folder / SERIES}: {name}")
    ui.result(str(file))


def run_export(options: argparse.Namespace, ui: Ui) -> None:
    """A branch of the user's clone with a commit for each patch."""
    count = workbench.export(_applicable(options, ui), options.tree, options.branch)
    ui.note(f"{count} commits on the branch {options.branch} of {options.tree}")


def add_patch_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands and their options."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Run, summary: str, *shared: Callable[[argparse.ArgumentParser], None]
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=summary)
        # Not given, they stay as they were given before the subcommand's name.
        add_common(made, default=argparse.SUPPRESS)
        for add in (add_additions, *shared):
            add(made)
        made.set_defaults(run=run)
        return made

    command("list", run_list, "List the patches, and how each stands to a release.", _torch, _lane)
    command("lint", run_lint, "Find orphans, duplicates, unexplained patches and others.")
    made = command(
        "apply", run_apply, "Apply the patches to a directory: all of them or none.", _tree, _lane
    )
    made.add_argument("--check", action="store_true", help="say what would be done")
    command(
        "edit", run_edit, "Make a git tree with a commit for each patch.", _torch, _lane, _bench
    )
    command(
        "refresh", run_refresh,
        "Bring its commits into patches/; after a conflict, resume.", _bench,
    )  # fmt: skip
    made = command("new", run_new, "Make a patch of what is not committed there.", _bench)
    made.add_argument("name")
    made.add_argument("--subject", required=True, help="what it does, in one line")
    made.add_argument("--why", required=True, help="why it exists")
    made.add_argument("--until", required=True, help="when it can go")
    made.add_argument("--upstream", default="none", help="upstream's commit or pull request")
    made.add_argument("--versions", default="*", help="the range of releases (default: all)")
    made.add_argument(
        "--lane", dest="build_mode", choices=("graft", "source", "both"), default="both"
    )
    made = command(
        "export", run_export, "Make a branch of your clone, a commit for each patch.", _tree, _lane
    )
    made.add_argument("--branch", required=True)


def _torch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--torch", metavar="UPSTREAM",
        help="a release, wheel file, git ref or tree (for edit, default: the default release)",
    )  # fmt: skip


def _tree(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=path, metavar="TREE")


def _lane(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lane", dest="build_mode", choices=("graft", "source"),
        help="default: what the layout of upstream suggests",
    )  # fmt: skip


def _bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bench", type=path, default=DEFAULT_BENCH, metavar="DIR", help="where the workbench is"
    )
