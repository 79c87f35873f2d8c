"""The graft: additions compiled against an official wheel, step by step, up to two libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ..additions import formulas, merge, validate
from ..additions.load import Additions
from ..additions.merge import MERGED_FILES, MergedTree
from ..additions.ranges import entries_at, without
from ..codegen import client, templates
from ..codegen.build_dir import GENERATOR_ROOMS, BuildDir, tooling_fingerprint
from ..codegen.client import Generated
from ..codegen.header_check import CheckedBase, Wrapper, generated_headers
from ..codegen.model import Manifest
from ..edits import lists, patches, stubs
from ..edits.patches import BuildMode, State
from ..errors import CompileError, ForkError, combined
from ..native import compile_steps, link, ninja, source_text, symbols, toolchain
from ..native.compile_steps import CompileStep
from ..native.symbols import Exports
from ..native.toolchain import Toolchain
from ..upstream import abi
from ..upstream.base import Base, Upstream
from ..util import cache, files, memo
from ..util.files import Rooted
from ..util.ui import Ui
from ..wheel import pack

# Compiled into libtorch with their present values: a wheel's own must stay.
KEPT_HEADERS = frozenset({"ATen/core/aten_interned_strings.h", "ATen/core/enum_tag.h",
                          "torch/headeronly/core/enum_tag.h"})  # fmt: skip
INCLUDE = "torch/include"
_MADE_FROM = "made-from.json"  # in BuildDir.generated: the state of the tree that it was made from
# Headers of which generated sources need what the additions have alone, by their paths in
# BuildDir.generated: the tree's thousands of functions take seconds to parse in each of them.
REDUCED_HEADERS = {
    "own/ATen/RedispatchFunctions.h": "ATen/RedispatchFunctions.h",
    "added/autograd/Functions.h": "torch/csrc/autograd/generated/Functions.h",
}


@dataclass(frozen=True)
class BuildContext:
    """What every step is about. The caller holds the layout (see build_dir.locked)."""

    base: Base
    additions: Additions
    layout: BuildDir


@dataclass(frozen=True)
class Merged:
    """Additions merged into a base's code generator, and validated by it."""

    tree: MergedTree
    manifest: Manifest
    list_texts: Mapping[str, str]  # files whose lists of operators change, with their new text


@dataclass(frozen=True)
class Grafted:
    """The outcome of a graft: what to pack or to put into an environment."""

    base: Base
    overlay: Path
    manifest: Manifest
    libraries: tuple[Path, ...]
    cuda_note: str  # why there are no CUDA kernels; '' where there are


def build(context: BuildContext, checked: CheckedBase, ui: Ui, *, here: bool = False) -> Grafted:
    """Everything from the YAML to the linked libraries. `here`: for this machine alone."""
    base, layout = context.base, context.layout
    pack.epoch_from()  # a wrong one would be refused only when the wheel is packed
    tools = toolchain.find(base, os.environ, visible=here)
    merged = merge_and_validate(context, checked.upstream, ui)
    toolchain.require_working(tools, abi.detect(base).cxx_standard)
    with ui.step("generate") as step:
        chosen = generate(context, merged, cuda=tools.cuda is not None)
        fill_overlay(context, merged, checked.wrapper)
        step.say(f"{len(chosen)} generated files have something of the additions in them")
    steps = compile_steps.all_steps(chosen, context.additions, tools)
    with ui.step("compile") as step:
        steps, compiled = compile_united(context, tools, steps, step.advance)
        cuda = f", CUDA for {tools.cuda.chosen}" if tools.cuda else ""
        step.say(f"{compiled} of {len(steps)} objects, {tools.jobs} at once{cuda}")
    with ui.step("compare declared and defined kernels") as step:
        found = symbols.read_objects(layout.build, steps)
        kernels = symbols.check(context.additions, found, exports(context))
        step.say(f"{kernels} kernels, none missing, none without a declaration")
    with ui.step("link") as step:
        libraries = link.link(base, abi.detect(base), tools, steps, layout.build, layout.overlay)
        step.say(", ".join(f"{p.name} {p.stat().st_size / 1024:.0f} KB" for p in libraries))
    return Grafted(base, layout.overlay, merged.manifest, libraries, tools.cuda_note)


def merge_and_validate(context: BuildContext, upstream: Upstream, ui: Ui) -> Merged:
    """Everything that can be known without a compiler.

    The patches apply, the YAML merges and is validated, and upstream's lists of operators have
    the places where the additions go.
    """
    base, additions = context.base, context.additions
    texts = apply_patches(additions, patches.directory(base.root), base.version, "graft", ui)
    patched = patches.wheel_texts(texts)
    with ui.step("check and merge the YAML") as step, ThreadPoolExecutor() as pool:
        # While the generator runs, in a process of its own.
        found = pool.submit(source_text.objections, additions, base, lambda: exports(context).names)
        tree, manifest = merge_and_parse(context, upstream, patched, found.result)
        step.say(
            f"{len(additions.native.entries)} operators, "
            f"{len(additions.derivatives.entries)} derivative formulas"
        )
    for note in validate.notes(additions):
        ui.warn(note)
    for name in manifest.unbound:
        ui.warn(
            f"'{name}' gets no Python binding: upstream's generator binds none of this name "
            f"(gen_python_functions.py)\n  change it, or use torch.ops.aten"
        )
    with ui.step("edit the lists of operators") as step:
        list_texts = apply_list_edits(context, tree, list_edits(context, tree, manifest))
        step.say(manifest.summary)
    return Merged(tree, manifest, list_texts)


def apply_patches(
    additions: Additions, tree: patches.Tree, version: str, mode: BuildMode, ui: Ui
) -> patches.Texts:
    """What the patches of the additions change in a tree: files with their new text."""
    if not patches.load(additions.root).folder.is_dir():
        return {}
    with ui.step("apply the patches") as step:
        report = patches.plan_additions(additions, tree, version, mode, cache.directory())
        report.require()
        applied = len(report.outcomes) - len(report.of(State.NOT_HERE, State.LANDED))
        step.say(f"{applied} patches, {len(report.texts)} files")
    for line in report.attention():
        ui.warn(line)
    return report.texts


def _reader(base: Rooted, texts: Mapping[str, str]) -> lists.Read:
    """Reads a file of the base, or its text in `texts` (edits come on top of patches)."""
    return patches.layered(patches.directory(base.root), texts).read


def merge_and_parse(
    context: BuildContext,
    upstream: Upstream,
    patched: Mapping[str, str] | None = None,
    found: Callable[[], Iterable[ForkError]] = list,
) -> tuple[MergedTree, Manifest]:
    """Check the additions, merge their YAML, and have PyTorch's own parser read it.

    Raises everything that is refused, by us or by the parser, as one error: what was refused is
    left out and the rest read again, until nothing is. found: gives what else is refused.
    """
    additions = context.additions
    errors = list(validate.objections(additions, upstream, context.base.version))
    errors += formulas.scope_objections(additions, _scope(context, upstream))
    objected = len(errors)
    accepted = replace(context, additions=without(additions, errors))
    while True:
        try:
            tree = merge_yaml(context.base, accepted.additions, context.layout.tree, patched)
            manifest = describe(accepted, tree, upstream)
            break
        except ForkError as error:
            errors.append(error)
            remaining = without(accepted.additions, [error])
            if remaining == accepted.additions or not remaining.native.entries:
                break
            accepted = replace(accepted, additions=remaining)
    # Of an entry that the parser refused it is not known what the sources lack.
    unread = [e.line for e in entries_at(additions.native, errors[objected:])]
    errors += [
        error for error in found()
        if all(e.line not in unread for e in entries_at(additions.native, [error]))
    ]  # fmt: skip
    if errors:
        raise combined(errors)
    return tree, manifest


def _scope(context: BuildContext, upstream: Upstream) -> formulas.Scope:
    """What derivative formulas can name on this base."""
    base = context.base
    manual = base.include / "torch" / "csrc" / "autograd" / "FunctionsManual.h"
    header = manual.read_text(encoding="utf-8") if manual.is_file() else ""
    yaml = (base.packaged / "autograd" / "derivatives.yaml").read_text(encoding="utf-8")
    folders = ("ATen", "ATen/core", "ATen/native", "torch/csrc/autograd")

    def exported(helpers: Collection[str]) -> set[str]:
        if not symbols.base_libraries(base):
            return set(helpers)
        names = "\n".join(exports(context).names)
        return {name for name in helpers if f"9generated7details{len(name)}{name}" in names}

    return formulas.Scope(
        words=upstream.operators | formulas.words_in(yaml) | formulas.words_in(header),
        operators=upstream.operators,
        manual=header,
        provided=compile_steps.provided_helpers(),
        elsewhere=lambda wanted: formulas.headers_with(base.include, folders, wanted),
        exported=exported,
    )


def exports(context: BuildContext) -> Exports:
    """What the base's libraries export, read once a base (nm takes a second)."""
    key = files.sha256_text(context.base.identity, tooling_fingerprint(("native", "upstream")))
    note = cache.directory() / "exports" / f"{context.base.identity}.json"
    return memo.remember(note, key, Exports, lambda: symbols.read_exports(context.base))


def merge_yaml(
    base: Rooted, additions: Additions, target: Path, patched: Mapping[str, str] | None = None
) -> MergedTree:
    """The base's code generator with the YAML of additions that `validate` has accepted."""
    tree = replace(merge.prepare(base, additions, target), patched=patched or {})
    schemas = [entry.key for entry in additions.native.entries]
    parser_edits = lists.edit_parser_lists(_reader(base, tree.patched), schemas)
    merge.apply_edits(base, tree, parser_edits, lists.parser_files())
    return tree


def describe(context: BuildContext, tree: MergedTree, upstream: Upstream) -> Manifest:
    """The generator's description of the additions, kept while YAML and tooling are the same."""
    additions, root = context.additions, context.layout.root
    yamls = (additions.native, additions.derivatives, additions.deprecated)
    parser = [text for name, text in tree.patched.items() if name.startswith("torchgen/")]
    key = files.sha256_text(
        tooling_fingerprint(GENERATOR_ROOMS), context.base.shared_identity,
        *(file.text for file in yamls), *parser,
    )  # fmt: skip
    return memo.remember(
        root / "manifest.json", key, Manifest,
        lambda: client.describe(tree, additions, upstream.schemas, root),
    )  # fmt: skip


def list_edits(context: BuildContext, tree: MergedTree, manifest: Manifest) -> list[lists.FileEdit]:
    """What happens to each file with a list of operators."""
    read, additions = _reader(context.base, tree.patched), context.additions
    return lists.edit_files(read, manifest, "graft", additions.manual_headers, additions.fake_impls)


def apply_list_edits(
    context: BuildContext, tree: MergedTree, edits: Sequence[lists.FileEdit]
) -> dict[str, str]:
    """Extend the generator's own lists of operators; every file that changes, with its new text."""
    texts = lists.changed_texts(edits)
    merge.apply_edits(context.base, tree, texts, lists.edited_files("graft"))
    return texts


def _generator_key(tree: MergedTree) -> str:
    """What the generator's output depends on."""
    merged = files.fingerprint(files.tree_files(tree.root), tree.root)
    return files.sha256_text(tooling_fingerprint(GENERATOR_ROOMS), merged)


def try_generator(context: BuildContext, merged: Merged, ui: Ui) -> None:
    """Raise what only the generation of sources refuses, which a build meets before it compiles."""
    layout, additions = context.layout, context.additions

    def tried() -> bool:
        client.try_sources(merged.tree, additions, merged.manifest, layout.root)
        return True

    with ui.step("try the generator"):
        key = _generator_key(merged.tree)
        if not _is_generated(layout, key):
            memo.remember(layout.root / "tried.json", key, bool, tried)


def _is_generated(layout: BuildDir, key: str) -> bool:
    """Whether a build has made the sources of this state of the tree."""
    return bool(files.read_json(layout.generated / _MADE_FROM) == key)


def generate(context: BuildContext, merged: Merged, *, cuda: bool) -> list[Generated]:
    """Run the generator, and choose the sources that have something of the additions in them.

    It runs only where the merged tree or the tooling are not those of the last run.
    """
    layout, tree, key = context.layout, merged.tree, _generator_key(merged.tree)
    if not _is_generated(layout, key):
        own = context.base.packaged / "autograd" / "templates"
        templates.make_autograd_templates(own, layout.templates)

        def fill(target: Path) -> None:
            client.generate(
                tree, context.additions, merged.manifest, layout.templates, target, layout.root
            )
            files.write_json(target / _MADE_FROM, key)

        files.build_directory(layout.generated, fill)
    return client.choose(layout.generated, layout.sources, cuda=cuda)


def fill_overlay(context: BuildContext, merged: Merged, wrapper: Wrapper) -> None:
    """Bring the overlay's headers, YAML, Python files and stubs up to date."""
    base, additions, layout = context.base, context.additions, context.layout
    texts = {**merged.tree.patched, **merged.list_texts}
    texts |= stubs.stub_edits(_reader(base, texts), merged.manifest)
    wanted = {
        **dict(_headers(base, wrapper, layout)),
        # The additions' own headers, where an in-tree build installs them.
        **{
            f"{INCLUDE}/ATen/{path.relative_to(additions.source_root)}": path.read_bytes()
            for path in additions.headers
            if not (base.include / "ATen" / path.relative_to(additions.source_root)).exists()
        },
        **dict(_packaged_yaml(base, merged.tree)),
        **{name: patches.encode(text) for name, text in texts.items()},
    }
    for name, data in wanted.items():
        files.write_if_changed(layout.overlay / name, data)
    kept = {*wanted, "torch/lib/libtorch.so", base.extension.as_posix()}  # these are linked later
    for path in files.tree_files(layout.overlay):
        # What an earlier build put there and this one does not, and bindings for another Python.
        if path.relative_to(layout.overlay).as_posix() not in kept:
            path.unlink()


def _headers(base: Base, wrapper: Wrapper, layout: BuildDir) -> Iterator[tuple[str, bytes]]:
    """The headers that differ from the base's; others go to layout.private, reduced."""
    for path in sorted((layout.generated / "added" / "ATen").glob("*.h")):
        # Upstream's ViewMetaClasses.h has no guard, and united files include it more than once.
        text = f"#pragma once\n{path.read_text(encoding='utf-8')}"
        files.write_if_changed(layout.private / "ATen" / path.name, text)
    for made, home in REDUCED_HEADERS.items():
        files.write_if_changed(layout.reduced / home, (layout.generated / made).read_bytes())
    for path, relative in generated_headers(layout.generated / "all"):
        if relative in KEPT_HEADERS:
            continue
        text = path.read_text(encoding="utf-8")
        installed = base.include / relative
        if not installed.is_file() and not relative.startswith("ATen/ops/"):
            files.write_if_changed(layout.private / relative, text)
            continue
        wrapped = wrapper.around(text)
        if not installed.is_file() or installed.read_text(encoding="utf-8") not in (text, wrapped):
            yield f"{INCLUDE}/{relative}", wrapped.encode()


def _packaged_yaml(base: Base, tree: MergedTree) -> Iterator[tuple[str, bytes]]:
    """The merged YAML files, so that a codegen run from the wheel knows the operators."""
    for key, relative in MERGED_FILES.items():
        text = tree.merged[key].text
        if text != (base.root / relative).read_text(encoding="utf-8"):
            yield relative, text.encode()


def compile_united(
    context: BuildContext,
    tools: Toolchain,
    steps: list[CompileStep],
    progress: ninja.Progress,
    united_as: Callable[[CompileStep], str] = compile_steps.group_in_wheel,
) -> tuple[list[CompileStep], int]:
    """Compile with generated files as a few; those of one that does not compile, each alone.

    The steps that were taken, and the number of objects that were not up to date.
    united_as: see compile_steps.unite.
    """
    build = context.layout.build
    together = compile_steps.unite(steps, build, united_as)
    try:
        return together, compile_objects(context, tools, together, progress)
    except CompileError:
        united = [step.object for step in together if step not in steps]
        failed = [name for name in united if not (build / name).exists()]
        if not failed:
            raise

    def group_of(step: CompileStep) -> str:
        group = united_as(step)
        return "" if group and any(group in name for name in failed) else group

    apart = compile_steps.unite(steps, build, group_of)
    return apart, compile_objects(context, tools, apart, progress)


def compile_objects(
    context: BuildContext, tools: Toolchain, steps: Sequence[CompileStep], progress: ninja.Progress
) -> int:
    """Compile; the number of objects that were not up to date."""
    base, layout = context.base, context.layout
    compile_steps.copy_sources(context.additions, layout)
    build_file = ninja.ninja_file(base, abi.detect(base), tools, steps)
    return ninja.compile_all(build_file, layout.build, tools, context.additions, progress)
