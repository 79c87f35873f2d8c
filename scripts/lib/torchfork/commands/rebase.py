"""torchfork rebase: carry additions to other upstream releases and report what came out."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ..additions.load import load as load_additions
from ..errors import RebaseError
from ..native import toolchain
from ..rebase import render, targets
from ..rebase import run as runner
from ..rebase.model import TIERS, Matrix
from ..upstream import pins as releases
from ..upstream.base import probe
from ..upstream.git import UPSTREAM
from ..util import cache, files
from ..util.ui import Ui
from .options import STATE, add_additions, add_work, place, positive

RUNNING = "ef"  # tiers that link or run for this machine


def add_rebase_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "--onto", action="append", default=[], metavar="TORCH",
        help="a pinned release (2.15.0), a wheel file, a source tree or a git ref; repeatable",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="every release of ci/releases.toml")
    parser.add_argument(
        "--to", choices=tuple(TIERS), default="d", metavar="TIER",
        help="the last tier: " + ", ".join(f"{k} {v}" for k, v in TIERS.items()) + " (default: d)",
    )  # fmt: skip
    parser.add_argument(
        "--native", action="store_true",
        help="use this machine's own wheels for (a) to (d), too: compiles CUDA kernels where there "
        "is a toolkit",
    )  # fmt: skip
    add_additions(parser)
    parser.add_argument(
        "--python", metavar="PYTHON", help="the interpreter that the wheels are for"
    )
    parser.add_argument(
        "--report", type=place, default=STATE / "report", metavar="DIR",
        help="the directory for matrix.{html,md,json}",
    )  # fmt: skip
    parser.add_argument(
        "--chain", type=Path, metavar="FILE",
        help="write a short log, release by release, to keep",
    )  # fmt: skip
    add_work(parser, "matrix")
    parser.add_argument(
        "--repository", default=UPSTREAM, metavar="URL", help="the repository of git refs"
    )
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="releases at once (default: cores)"
    )
    parser.add_argument("--fresh", action="store_true", help="use no kept result")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, ui: Ui) -> None:
    """Run the matrix, write the report, and fail where a release fails."""
    letters = "".join(TIERS).partition(options.to)[0] + options.to
    pins = releases.load()
    chosen = targets.parse(options.onto, pins, everything=options.all)
    jobs = min(options.jobs or toolchain.cores(), len(chosen))
    settings = runner.Settings(
        additions=load_additions(options.additions),
        opening=targets.TargetOpening(
            interpreter=probe(options.python, headers="d" in letters),
            pins=pins,
            cache=cache.directory(),
            repository=options.repository,
            runnable=options.native or bool(set(RUNNING) & set(letters)),
        ),
        tiers=letters,
        work=options.work,
        jobs=jobs,
        compilers=max(1, toolchain.cores() // jobs),
        fresh=options.fresh,
    )
    with ui.step(f"carry to {len(chosen)} release{'s' * (len(chosen) != 1)}") as step:
        doing: dict[str, str] = {}

        def watch(name: str, text: str) -> None:
            doing[name] = text
            ended = sum(not what for what in doing.values())
            shown = "; ".join(f"{who}: {what}" for who, what in sorted(doing.items()) if what)
            step.advance(ended, len(chosen), shown)

        matrix = runner.run(chosen, settings, watch)
        step.say(f"tiers ({letters[0]}) to ({letters[-1]})")
    report(matrix, options.report, options.chain, ui)


def report(matrix: Matrix, folder: Path, chain: Path | None, ui: Ui) -> None:
    """Write the report, show it, and raise RebaseError where a release fails."""
    files.write_json(folder / "matrix.json", matrix.to_json())
    files.write_text(folder / "matrix.md", render.markdown(matrix))
    files.write_text(folder / "matrix.html", render.page(matrix))
    if chain:
        files.write_text(chain, render.chain(matrix))
    render.show(matrix, Console(highlight=False))
    ui.note(f"report: {folder / 'matrix.html'} (also matrix.md, matrix.json)")
    if failed := matrix.failed:
        kinds = {tier.finding.kind for target in failed for tier in target.tiers if tier.finding}
        raise RebaseError(
            f"{len(failed)} of {len(matrix.targets)} releases fail",
            where=", ".join(target.name for target in failed),
            why=", ".join(sorted(kinds)),
            next=f"see above, or {folder}",
        )
