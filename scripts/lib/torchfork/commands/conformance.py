"""torchfork conformance: whether each operator has all that PyTorch gives its own operators."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rich.console import Console

from ..additions.load import GAPS
from ..additions.load import load as load_additions
from ..conformance import plan
from ..conformance import run as runner
from ..conformance import table as tables
from ..conformance.checks.worker import Job
from ..conformance.table import RED, Table
from ..errors import CitizenshipError
from ..native import toolchain
from ..util import files, memo, venv
from ..util.ui import Ui
from .options import add_additions, add_work, exclusive, positive


def add_conformance_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a wheel, installed by itself")
    parser.add_argument(
        "--env", metavar="DIR",
        help="an environment that has the torch: its directory or its interpreter (default: the "
        "current one)",
    )  # fmt: skip
    parser.add_argument(
        "--python", metavar="PYTHON", help="with --wheel: the interpreter to install it for"
    )
    add_additions(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")
    parser.add_argument(
        "--operator", action="append", default=[], metavar="NAME",
        help="only this one, by its base name with all of its overloads; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--item", action="append", default=[], metavar="TITLE", help="only this one; repeatable"
    )
    parser.add_argument(
        "--device", action="append", default=[], choices=("cpu", "cuda"),
        help="only this one (default: cpu, and cuda where there is a GPU)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="operators at once (default: cores)"
    )
    parser.add_argument(
        "--timeout", type=float, default=900, metavar="SECONDS", help="for one cell (default: 900)"
    )
    add_work(parser, "citizenship")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, ui: Ui) -> None:
    """Check, show, write, and fail where a gap has no reason."""
    exclusive(options, "wheel", "env", why="either names the torch to check")
    additions = load_additions(options.additions)
    plan.require_declared(additions, options.operator)
    explanations = tables.load(additions.root)
    work = options.work
    with files.lock(work / "lock", "checking operators"):
        scratch = work / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        with ui.step("prepare the environment") as step:
            if options.wheel:
                target = plan.of_wheel(options.wheel, options.python, work, step.show)
            else:
                target = plan.of_environment(options.env)
            # Their own dependencies are listed too: torch, which some name, is never fetched.
            extras = venv.packages(
                plan.REQUIREMENTS, target, work, "what the checks need", step.show, "--no-deps"
            )
            step.say(str(target.executable))
        with ui.step("read the operators' declarations") as step:
            planned = plan.make(additions, target.executable, scratch / "plan")
            step.say(f"{len(planned.operators)} operators")
        job = Job(
            operators=[memo.dump(operator) for operator in planned.operators],
            samples=str(planned.samples or ""), documented=list(planned.documented),
            devices=options.device, extras=str(extras), scratch=str(scratch),
            timeout=options.timeout,
        )  # fmt: skip
        workers = runner.Workers(target.executable, scratch, job)
        with ui.step("check") as step:
            chosen = runner.Chosen(tuple(options.operator), tuple(options.item))
            jobs = options.jobs or toolchain.cores()
            table = runner.run(planned, workers, explanations, chosen, jobs, step.advance)
            step.say(f"{len(table.cells)} cells")
    report(table, options.json, explained_in=additions.root / GAPS)


def report(table: Table, json: Path | None, *, explained_in: Path) -> None:
    """Show the table, write it, and raise CitizenshipError where anything is red."""
    tables.show(table, Console(highlight=False))
    if json is not None:
        files.write_json(json, table.to_json())
    if table.red:
        red = table.in_state(*RED)
        raise CitizenshipError(
            f"{len(red) + len(table.explanations)} gaps without a reason",
            where=f"torch {table.version} on {', '.join(table.devices)}",
            why="; ".join(f"{cell.operator}: {cell.item}" for cell in red[:8])
            + ("; …" if len(red) > 8 else ""),
            next="fix the operator or its patches, or give the reason in\n"
            f"{explained_in}: [[gap]] operator, item, why",
        )
