"""torchfork patch: what is in patches/, how it stands to a release, and how to edit it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..edits import patches
from ..edits.patches import BuildMode, Report, Series, State, Tree, workbench
from ..edits.patches.series import SERIES, make_header
from ..errors import UsageError
from ..rebase import targets
from ..upstream import interpreter, pins
from ..upstream import tree as source_trees
from ..upstream.git import UPSTREAM
from ..upstream.wheel import VERSION_FILE, read_version_file
from ..util import cache
from ..util.ui import Ui
from .options import STATE, add_additions, add_common

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
    path = Path(word)
    if path.is_dir():
        return _open_directory(path, mode)
    pinned = pins.load()
    [target] = targets.parse([word], pinned, everything=False)
    python = interpreter.probe(None, headers=False)
    with ui.step("open upstream") as step:
        opening = targets.Opening(python, pinned, cache.directory(), UPSTREAM, runnable=False)
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
    report = _plan(series, open_target(options.torch, options.lane, ui))
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
    target = open_target(str(options.tree), options.lane, ui)
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
    target = open_target(options.torch or pins.load().default, options.lane, ui)
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
    changed = workbench.refresh(bench, series, _known_releases(), options.variant or "")
    for path in changed:
        ui.result(str(path))
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
    line = f"{name}  {options.versions}  {options.patch_lane}  # {header.subject}"
    path = workbench.add(bench, series, name, header, line)
    ui.note(f"added at the end of {series.folder / SERIES}: {name}")
    ui.result(str(path))


def run_export(options: argparse.Namespace, ui: Ui) -> None:
    """A branch of the user's clone with a commit for each patch."""
    count = workbench.export(_applicable(options, ui), options.tree, options.branch)
    ui.note(f"{count} commits on the branch {options.branch} of {options.tree}")


def add_patch_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands and their options."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_reading(commands)
    _add_editing(commands)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary)
    # Not given, they stay as they were given before the subcommand's name.
    add_common(parser, default=argparse.SUPPRESS)
    add_additions(parser)
    return parser


def _add_lane(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lane", choices=("graft", "source"), help="default: what the layout of upstream suggests"
    )


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bench", type=Path, default=DEFAULT_BENCH, metavar="DIR", help="where the workbench is"
    )


def _add_torch(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--torch", metavar="UPSTREAM", help=f"a release, wheel file, git ref or tree{default}"
    )
    _add_lane(parser)


def _add_reading(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "list", "List the patches, and how each stands to a release.")
    _add_torch(parser, "")
    parser.set_defaults(run=run_list)
    parser = _command(commands, "lint", "Find orphans, duplicates, unexplained patches and others.")
    parser.set_defaults(run=run_lint)
    parser = _command(commands, "apply", "Apply the patches to a directory: all of them or none.")
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("--check", action="store_true", help="say what would be done")
    _add_lane(parser)
    parser.set_defaults(run=run_apply)


def _add_editing(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "edit", "Make a git tree with a commit for each patch.")
    _add_torch(parser, " (default: the default release)")
    _add_bench(parser)
    parser.set_defaults(run=run_edit)
    parser = _command(
        commands, "refresh", "Bring its commits into patches/; after a conflict, go on with it."
    )
    parser.add_argument(
        "--variant", metavar="TAG", help="beside the old patches, for this release and later ones"
    )
    _add_bench(parser)
    parser.set_defaults(run=run_refresh)
    parser = _command(commands, "new", "Make a patch of what is not committed there.")
    parser.add_argument("name")
    parser.add_argument("--subject", required=True, help="what it does, in one line")
    parser.add_argument("--why", required=True, help="why it exists")
    parser.add_argument("--until", required=True, help="when it can go")
    parser.add_argument("--upstream", default="none", help="upstream's commit or pull request")
    parser.add_argument("--versions", default="*", help="the range of releases (default: all)")
    parser.add_argument(
        "--lane", dest="patch_lane", choices=("graft", "source", "both"), default="both"
    )
    _add_bench(parser)
    parser.set_defaults(run=run_new)
    parser = _command(commands, "export", "Make a branch of your clone, a commit for each patch.")
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("--branch", required=True)
    _add_lane(parser)
    parser.set_defaults(run=run_export)
