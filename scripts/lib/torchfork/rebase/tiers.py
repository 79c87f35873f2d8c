"""The tiers: the graft lane's own stages, each a step further, stopped where one refuses."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..additions import validate
from ..additions.load import Additions
from ..additions.merged import MergedTree
from ..codegen import gating
from ..codegen.build_dir import BuildDir
from ..codegen.gating import CheckedBase
from ..codegen.model import Manifest
from ..codegen.select import Generated
from ..edits import base_patches, text_edits
from ..edits.patches import Outcome, State
from ..errors import CompileError, ForkError
from ..native import compile as compile_stage
from ..native import exports, fast_compile, link, ninja, symbols, toolchain, units
from ..native.toolchain import Toolchain
from ..native.units import CompileStep
from ..pipelines import graft
from ..upstream import abi
from ..upstream.base import Base
from ..upstream.inventory import Upstream
from ..util import process
from ..util.ui import Ui
from . import trial
from .model import FAILED, NOT_NEEDED, PASSED

Say = Callable[[str], None]
Row = dict[str, str]


class Objections(ForkError):
    """Several objections at once; what it says is what the first of them says."""

    def __init__(self, all_of_them: list[ForkError]) -> None:
        first = all_of_them[0]
        super().__init__(
            first.what, where=first.where, why=first.why, next=first.next, kind=first.kind
        )
        self.exit_code = first.exit_code
        self.first, self.all = first, all_of_them


@dataclass
class TargetRun:
    """One subject under way: what the tiers so far have made of it."""

    base: Base
    additions: Additions
    layout: BuildDir
    cache: Path
    work: Path
    jobs: int  # compilers at once
    final: bool  # the objects are to be linked, not only checked
    say: Say
    log: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)  # of the tier at hand
    facts: dict[str, Any] = field(default_factory=dict)
    upstream: Upstream = field(default_factory=lambda: Upstream((), frozenset(), frozenset()))
    tree: MergedTree | None = None
    manifest: Manifest = field(default_factory=Manifest)
    chosen: list[Generated] = field(default_factory=list)
    gated: CheckedBase | None = None
    tools: Toolchain | None = None
    objects: list[CompileStep] = field(default_factory=list)

    def step(self, text: str) -> None:
        """A line for the log and for whoever watches."""
        self.log.append(text)
        self.say(text)


def merge(run: TargetRun) -> str:
    """(a) The YAML merges, nothing collides, and torchgen is one that can be driven."""
    run.step("ask the code generator what this torch has")
    run.upstream = gating.survey(run.base, run.cache)
    run.step(f"hold {len(run.additions.native.entries)} entries against it")
    objections = list(validate.objections(run.additions, run.upstream, run.base.version))
    if objections:
        run.log += [objection.render() for objection in objections]
        raise Objections(objections)
    run.step("merge and parse the YAML")
    run.tree = graft.merge_yaml(run.base, run.additions, run.upstream, run.layout)
    run.manifest = graft.describe(run.base, run.additions, run.tree, run.upstream, run.layout)
    return run.manifest.summary


def patches(run: TargetRun) -> str:
    """(b) Every list that upstream keeps by hand has its place, and the patches apply."""
    assert run.tree is not None
    run.step("apply the patches")
    series = base_patches.load(run.additions)
    report = base_patches.plan(run.base, series, run.cache)
    run.rows += [_patch_row(outcome) for outcome in report.outcomes]
    wrong = report.objections()
    if wrong:
        run.log += [error.render() for error in wrong]
        raise Objections([*wrong])
    run.tree = replace(run.tree, patched=base_patches.texts(report))
    run.step("find the places of all lists")
    states = text_edits.hook_states(run.base, run.additions, run.tree, run.manifest)
    run.rows += [_hook_row(path, state) for path, state in states.items()]
    failed = [state for state in states.values() if isinstance(state, ForkError)]
    if failed:
        run.log += [error.render() for error in failed]
        raise Objections(failed)
    edits = graft.edit_operator_lists(run.base, run.additions, run.tree, run.manifest)
    applied = len(series.entries) - len(report.of(State.NOT_HERE))
    return f"{applied} patches ({report.variants} variants), {len(edits)} lists filled"


def _patch_row(outcome: Outcome) -> Row:
    fine = {State.APPLIES: PASSED, State.NOT_HERE: NOT_NEEDED}
    state = fine.get(outcome.state, FAILED)
    text = f"{outcome.state.value}{f': {outcome.note}' if outcome.note else ''}"
    if outcome.state is State.NOT_HERE:
        text = f"not needed: {text}"
    return {"name": f"patches/{outcome.name}", "state": state, "text": text}


def _hook_row(path: str, state: bool | ForkError) -> Row:
    if isinstance(state, ForkError):
        return {"name": path, "state": FAILED, "text": f"{state.kind}: {state.what}\n{state.why}"}
    if state:
        return {"name": path, "state": PASSED, "text": "filled"}
    return {"name": path, "state": NOT_NEEDED, "text": "not needed: nothing to put in"}


def generate(run: TargetRun) -> str:
    """(c) Everything generates: all headers of the merged tree, all sources of the additions."""
    assert run.tree is not None
    run.step("run the code generator")
    run.chosen = graft.generate(
        run.base, run.additions, run.tree, run.manifest, run.layout,
        cuda=run.base.cuda is not None,
    )  # fmt: skip
    run.log += [f"  {item.name}" for item in run.chosen]
    return f"{len(run.chosen)} generated files hold something of the additions"


def compile_all(run: TargetRun) -> str:
    """(d) The base's headers regenerate; all compiles; declared kernels are defined ones."""
    assert run.tree is not None
    run.step("regenerate the base's own headers")
    run.gated = gating.check_headers(run.base, run.cache, Ui(quiet=True))
    wrapper = run.gated.wrapper
    run.facts["wrapper"] = {"before": wrapper.before, "after": wrapper.after}
    run.log.append(f"{run.gated.compared} headers equal what the YAML makes")
    text_edits.assemble_all(run.base, run.additions, wrapper, run.tree, run.manifest, run.layout)
    tools = fast_compile.tools(run.base, os.environ, run.jobs, final=run.final)
    if run.base.cuda is not None and tools.cuda is None:
        run.chosen = graft.generate(
            run.base, run.additions, run.tree, run.manifest, run.layout, cuda=False
        )
    objects = units.all_units(run.chosen, run.additions, tools)
    if run.final:
        _compile(run, tools, objects)
    else:
        objects = _compile_lightly(run, tools, objects)
    run.step("compare declared and defined kernels")
    kernels = graft.compare_symbols(run.base, run.additions, objects, run.layout)
    exports.note(run.base, run.work)
    run.facts["identity"] = run.base.identity
    needed = symbols.read_objects(run.layout.build, objects)
    run.tools, run.objects = tools, objects
    run.facts["needed"] = fast_compile.needed_signatures(needed.values())
    note = f"; CUDA: {tools.cuda_note}" if tools.cuda is None and _has_cuda(run.additions) else ""
    return f"{len(objects)} objects, {kernels} kernels declared and defined{note}"


def _compile_lightly(
    run: TargetRun, tools: Toolchain, objects: list[CompileStep]
) -> list[CompileStep]:
    """Compile for the check alone; what does not pass together has the last word one by one."""
    compile_stage.link_additions(run.additions, run.layout.additions_include)  # to be read there
    for united in fast_compile.UNITED:
        light = fast_compile.lighten(run.base, objects, run.layout, united)
        try:
            _compile(run, tools, light)
            break
        except CompileError:
            if united == fast_compile.UNITED[-1]:
                raise
            run.log.append(f"not with {united} as one; once more")
    return light


def _compile(run: TargetRun, tools: Toolchain, objects: list[CompileStep]) -> None:
    text = ninja.ninja_text(run.base, abi.detect(run.base), tools, objects)
    run.step(f"compile {len(objects)} objects")
    graft.compile_objects(
        text, run.additions, tools, run.layout,
        lambda done, total, name: run.say(f"compiling {done}/{total} {name}"),
    )  # fmt: skip


def link_all(run: TargetRun) -> str:
    """(e) The objects, compiled as for a wheel, link into the two libraries."""
    assert run.tools is not None
    run.step("link the two libraries")
    libraries = link.link(
        run.base, abi.detect(run.base), run.tools, run.objects,
        run.layout.build, run.layout.overlay,
    )  # fmt: skip
    return ", ".join(f"{path.name} {path.stat().st_size / 1024:.0f} KB" for path in libraries)


def _has_cuda(additions: Additions) -> bool:
    return any(path.suffix == ".cu" for path in additions.sources)


TASKS: dict[str, Callable[[TargetRun], str]] = {
    "a": merge,
    "b": patches,
    "c": generate,
    "d": compile_all,
    "e": link_all,
    "f": trial.run,
}


def surroundings(letters: str) -> list[str]:
    """What of the machine a result depends on: nothing until a compiler runs."""
    if "d" not in letters:
        return []
    names = ("USE_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME")
    try:
        compiler = process.run([*toolchain.find_cxx(os.environ).split(), "--version"]).stdout
    except ForkError as error:  # told by the tier that needs it
        compiler = error.what
    return [compiler, platform.machine(), *(os.environ.get(name, "") for name in names)]


def objections_of(error: ForkError) -> Iterator[ForkError]:
    """Every objection that an error stands for."""
    yield from error.all if isinstance(error, Objections) else [error]
