"""The tiers: stages of the graft, each a step further than the one before it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..additions.merge import MergedTree
from ..codegen import header_check
from ..codegen.client import Generated
from ..codegen.model import Manifest
from ..edits import patches
from ..edits.lists import FileEdit
from ..edits.patches import Outcome, State
from ..errors import ForkError, VerificationError, combined
from ..native import compile_steps, link, source_text, symbols, toolchain
from ..native.compile_steps import CompileStep
from ..native.ninja import Progress
from ..native.toolchain import Toolchain
from ..pipelines import graft
from ..pipelines.graft import BuildContext
from ..upstream import abi
from ..upstream.wheel import grafted_version
from ..util import files, process, venv
from ..util.ui import Ui
from ..wheel import pack, verify
from .model import FAILED, NOT_NEEDED, PASSED, Row

Say = Callable[[str], None]
TESTS = Path("tests") / "ops"
REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements-test.txt"


@dataclass(frozen=True)
class Context(BuildContext):
    """What every tier of a target works with.

    jobs: compilers at once. final: the objects are to be linked, not only checked.
    progress: is shown and not kept. log: is kept with the tier's result, and shown.
    """

    cache: Path
    work: Path
    jobs: int
    final: bool
    progress: Say
    log: Say


@dataclass(frozen=True)
class Passed:
    """What a tier that passed says of itself.

    needed: of tier (d), the signatures of upstream's that the objects call.
    """

    outcome: str
    rows: tuple[Row, ...] = ()
    needed: tuple[str, ...] | None = None


class TierFailed(Exception):
    """A tier that failed: the error, with all others in it, and the parts that it looked at."""

    def __init__(self, errors: Sequence[ForkError], rows: Sequence[Row] = ()) -> None:
        self.error, self.rows = combined(errors), tuple(rows)
        super().__init__(str(self.error))


def run_all(context: Context) -> Iterator[Passed]:
    """What each tier gives, in order. Each runs when it is asked for, and raises where it fails."""
    tree, manifest = merge(context)
    yield Passed(manifest.summary)
    merged, patched = patch(context, tree, manifest)
    yield patched
    chosen = generate(context, merged)
    yield Passed(f"{len(chosen)} generated files contain the additions")
    tools, objects, compiled = compile_all(context, merged, chosen)
    yield compiled
    yield Passed(link_all(context, tools, objects))
    yield Passed(try_out(context, manifest))


def merge(context: Context) -> tuple[MergedTree, Manifest]:
    """(a) The YAML merges, nothing collides, and torchgen is one that can be driven."""
    base, additions = context.base, context.additions
    context.log("list the operators of this torch")
    upstream = header_check.list_operators(base, context.cache)
    context.log(f"check, merge and parse {len(additions.native.entries)} entries")
    found = partial(source_text.foreign_registrations, additions)
    return graft.merge_and_parse(context, upstream, found=found)


def patch(context: Context, tree: MergedTree, manifest: Manifest) -> tuple[graft.Merged, Passed]:
    """(b) Every list that upstream keeps by hand has its anchor, and the patches apply."""
    base, additions = context.base, context.additions
    context.log("apply the patches")
    upstream = patches.directory(base.root)
    report = patches.plan_additions(additions, upstream, base.version, "graft", context.cache)
    rows = [_patch_row(outcome) for outcome in report.outcomes]
    errors = list[ForkError](report.objections())
    if not errors:
        tree = replace(tree, patched=patches.wheel_texts(report.texts))
    context.log("edit the lists of operators")
    edits = graft.list_edits(context, tree, manifest)
    rows += [_list_row(edit) for edit in edits]
    errors += [edit.error for edit in edits if edit.error is not None]
    if errors:
        raise TierFailed(errors, rows)
    list_texts = graft.apply_list_edits(context, tree, edits)
    applied = len(report.outcomes) - len(report.of(State.NOT_HERE))
    outcome = f"{applied} patches ({report.variants} variants), {len(list_texts)} lists edited"
    return graft.Merged(tree, manifest, list_texts), Passed(outcome, tuple(rows))


def _patch_row(outcome: Outcome) -> Row:
    state = {State.APPLIES: PASSED, State.NOT_HERE: NOT_NEEDED}.get(outcome.state, FAILED)
    text = f"{outcome.state.value}{f': {outcome.note}' if outcome.note else ''}"
    prefix = "not needed: " if state == NOT_NEEDED else ""
    return Row(f"patches/{outcome.name}", state, prefix + text)


def _list_row(edit: FileEdit) -> Row:
    if edit.error is not None:
        return Row(edit.path, FAILED, f"{edit.error.kind}: {edit.error.what}\n{edit.error.why}")
    if edit.text is not None:
        return Row(edit.path, PASSED, "edited")
    return Row(edit.path, NOT_NEEDED, "not needed: no change")


def generate(context: Context, merged: graft.Merged) -> list[Generated]:
    """(c) Everything generates: the headers that the additions change, and all their sources."""
    context.log("run the code generator")
    chosen = graft.generate(context, merged, cuda=context.base.cuda is not None)
    for item in chosen:
        context.log(f"  {item.name}")
    return chosen


def compile_all(
    context: Context, merged: graft.Merged, chosen: list[Generated]
) -> tuple[Toolchain, list[CompileStep], Passed]:
    """(d) The base's headers regenerate; all compiles; declared kernels are defined ones."""
    base, additions, layout = context.base, context.additions, context.layout
    context.log("regenerate the base's own headers")
    checked = header_check.check_headers(base, context.cache, Ui(quiet=True))
    context.log(f"{checked.compared} headers equal what the YAML makes")
    graft.fill_overlay(context, merged, checked.wrapper)
    # Read by `compare`, also where this tier fails: it tells what upstream hides.
    symbols.keep_signatures(base, context.work)
    tools = (
        toolchain.find(base, os.environ)
        if context.final
        else toolchain.find_for_check(base, os.environ, context.jobs)
    )
    if base.cuda is not None and tools.cuda is None:
        chosen = graft.generate(context, merged, cuda=False)
    objects = compile_steps.all_steps(chosen, additions, tools)
    group_of = compile_steps.group_in_wheel
    if not context.final:
        objects = compile_steps.for_check(base, objects, layout.build)
        group_of = compile_steps.group_in_check
    context.log(f"compile {len(objects)} objects, the generated ones as a few")
    objects, _ = graft.compile_united(context, tools, objects, _shown(context), group_of)
    context.log("compare declared and defined kernels")
    found = symbols.read_objects(layout.build, objects)
    kernels = symbols.check(additions, found, graft.exports(context))
    has_cuda = any(path.suffix == ".cu" for path in additions.sources)
    note = f"; CUDA: {tools.cuda_note}" if tools.cuda is None and has_cuda else ""
    outcome = f"{len(objects)} objects, {kernels} kernels declared and defined{note}"
    signatures = tuple(symbols.needed_signatures(found.values()))
    return tools, objects, Passed(outcome, needed=signatures)


def _shown(context: Context) -> Progress:
    return lambda done, total, name: context.progress(f"compiling {done}/{total} {name}")


def link_all(context: Context, tools: Toolchain, objects: list[CompileStep]) -> str:
    """(e) The objects, compiled as for a wheel, link into the two libraries."""
    base, layout = context.base, context.layout
    context.log("link the two libraries")
    libraries = link.link(base, abi.detect(base), tools, objects, layout.build, layout.overlay)
    return ", ".join(f"{path.name} {path.stat().st_size / 1024:.0f} KB" for path in libraries)


def try_out(context: Context, manifest: Manifest) -> str:
    """(f) The wheel installs, passes its verification, and the additions' own tests pass on it."""
    base, work, say = context.base, context.work, context.progress
    context.log("pack the wheel")
    version = grafted_version(base.version, 1)
    wheel = pack.pack(
        base, context.layout.overlay, version, context.layout.root / "wheel", pack.epoch_from()
    )
    # One environment serves all releases that require the same: nobody else may change it now.
    with files.lock(work / "verify" / "trial.lock", f"trying {wheel.name}", 4 * 3600):
        context.log("install the wheel and compare it with its base")
        report = verify.verify(wheel, base, manifest, work / "verify", context.cache, say=say)
        outcome = (
            f"imports; {report.upstream_operators} upstream schemas unchanged, "
            f"{len(report.added)} added"
        )
        context.log(outcome)
        tests = context.additions.root / TESTS
        if not tests.is_dir():
            return f"{outcome}; the additions bring no {TESTS}"
        context.log(f"run {TESTS}")
        return f"{outcome}; {_pytest(context, report.python, tests)}"


def _pytest(context: Context, python: Path, tests: Path) -> str:
    """Run the tests with pytest and its plugins from a directory beside the wheel's environment."""
    neutral = context.work / "verify" / "neutral"
    tools = venv.packages(
        REQUIREMENTS, context.base.interpreter, context.work / "verify", "pytest and its plugins",
        context.progress,
    )  # fmt: skip
    project = tests.parents[1]
    configuration = project / "pyproject.toml"
    outcome = process.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", project,
         "-c", configuration if configuration.is_file() else "/dev/null", tests],
        cwd=neutral, env={"PYTHONPATH": str(tools)}, check=False, supervised=True,
    )  # fmt: skip
    context.log(outcome.stdout[-20000:])
    last = (outcome.stdout.strip().splitlines() or [""])[-1]
    if outcome.returncode or not re.search(r"\b\d+ passed\b", last):
        raise VerificationError(
            "the additions' tests fail on the finished wheel",
            where=outcome.command,
            why="\n".join((outcome.stdout + outcome.stderr).strip().splitlines()[-25:]),
            next=f"the wheel is kept: {context.layout.root / 'wheel'}",
            kind="tests fail",
        )
    return last.strip("= ")


def machine_key(letters: str, environment: Mapping[str, str]) -> list[str]:
    """What of the machine a result depends on: nothing until a compiler runs."""
    if "d" not in letters:
        return []
    names = ("USE_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME")
    try:
        compiler = process.run([*toolchain.find_cxx(environment).split(), "--version"]).stdout
    except ForkError as error:  # the tier that needs it reports it
        compiler = error.what
    return [compiler, platform.machine(), *(environment.get(name, "") for name in names)]
