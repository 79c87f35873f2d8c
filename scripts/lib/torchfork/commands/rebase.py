"""torchfork rebase: carry additions to other upstream releases and report what came out."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..additions.load import load as load_additions
from ..errors import RebaseError, UsageError
from ..native import toolchain
from ..rebase import chain, markdown, page, targets, terminal
from ..rebase import run as runner
from ..rebase.model import TIERS, Matrix
from ..upstream import interpreter
from ..upstream import pins as releases
from ..util import cache, files
from ..util.ui import Ui
from .options import PROJECT, UPSTREAM, add_additions

DEFAULT_WORK = PROJECT / ".torchfork" / "matrix"
NEEDS_THE_VERY_WHEEL = "ef"  # tiers that run what they made


@dataclass(frozen=True)
class RebaseOptions:
    """What to carry where, how far, and where the report goes."""

    onto: tuple[str, ...]
    everything: bool
    last_tier: str
    native: bool
    additions: Path
    work: Path
    report: Path
    python: str | None
    repository: str
    jobs: int | None
    fresh: bool
    chain: Path | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        help="take the wheels that this machine runs also for (a) to (d): CUDA kernels are "
        "compiled where there is a toolkit",
    )  # fmt: skip
    add_additions(parser)
    parser.add_argument("--python", metavar="PYTHON", help="the interpreter that wheels are for")
    parser.add_argument(
        "--report", type=Path, default=PROJECT / ".torchfork" / "report", metavar="DIR",
        help="where matrix.{html,md,json} go",
    )  # fmt: skip
    parser.add_argument(
        "--chain", type=Path, metavar="FILE",
        help="write a short log, release by release, that is worth keeping",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, default=DEFAULT_WORK, metavar="DIR",
        help="where build files and results are kept between runs",
    )  # fmt: skip
    parser.add_argument(
        "--repository", default=UPSTREAM, metavar="URL", help="where git refs are fetched from"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="releases at once (default: cores)")
    parser.add_argument("--fresh", action="store_true", help="use no kept result")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, ui: Ui) -> None:
    run(
        RebaseOptions(
            onto=tuple(options.onto),
            everything=options.all,
            last_tier=options.to,
            native=options.native,
            additions=options.additions,
            work=options.work.absolute(),
            report=options.report.absolute(),
            python=options.python,
            repository=options.repository,
            jobs=options.jobs,
            fresh=options.fresh,
            chain=options.chain,
        ),
        ui,
    )


def run(options: RebaseOptions, ui: Ui) -> None:
    """Run the matrix, write the report, and fail where anything needs a person."""
    if options.jobs is not None and options.jobs < 1:
        raise UsageError("--jobs is less than 1", next="give 1 or more")
    letters = "".join(TIERS)[: list(TIERS).index(options.last_tier) + 1]
    pins = releases.load()
    chosen = targets.parse(options.onto, pins, everything=options.everything)
    jobs = min(options.jobs or toolchain.cores(), len(chosen))
    settings = runner.Settings(
        additions=load_additions(options.additions),
        opening=targets.Opening(
            interpreter=interpreter.probe(options.python, headers="d" in letters),
            pins=pins,
            cache=cache.directory(),
            repository=options.repository,
            runnable=options.native or bool(set(NEEDS_THE_VERY_WHEEL) & set(letters)),
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
    report(matrix, options, ui)


def report(matrix: Matrix, options: RebaseOptions, ui: Ui) -> None:
    """Write the report, show it, and raise RebaseError where anything needs a person."""
    files.write_json(options.report / "matrix.json", matrix.to_json())
    files.write_text(options.report / "matrix.md", markdown.render(matrix))
    files.write_text(options.report / "matrix.html", page.render(matrix))
    if options.chain:
        files.write_text(options.chain, chain.render(matrix))
    terminal.show(matrix, Console(highlight=False))
    ui.note(f"report: {options.report / 'matrix.html'} (also matrix.md, matrix.json)")
    red = [subject for subject in matrix.subjects if subject.red]
    if red:
        kinds = {s.first_failure.finding.kind for s in red
                 if s.first_failure and s.first_failure.finding}  # fmt: skip
        raise RebaseError(
            f"the additions do not come through on {len(red)} of {len(matrix.subjects)} releases",
            where=", ".join(subject.name for subject in red),
            why=", ".join(sorted(kinds)),
            next=f"see above, or {options.report}",
        )
