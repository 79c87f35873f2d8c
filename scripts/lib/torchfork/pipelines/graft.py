"""The graft lane: additions compiled against an official wheel, and a new wheel made of both."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..additions import formulas, merge, validate
from ..additions.load import Additions
from ..additions.merge import MergedTree
from ..additions.subset import without
from ..codegen import client, select, templates
from ..codegen.build_dir import BuildDir
from ..codegen.header_check import CheckedBase
from ..codegen.model import Manifest
from ..codegen.select import Generated
from ..edits import lists, overlay, text_edits
from ..errors import ForkError, combined
from ..native import compile as compile_stage
from ..native import compile_steps, link, ninja, symbols, toolchain
from ..native.compile_steps import CompileStep
from ..native.symbols import Exports
from ..native.toolchain import Toolchain
from ..upstream import abi
from ..upstream.base import Base, Upstream
from ..util import files, memo
from ..util.ui import Ui
from .workdir import described, tooling_fingerprint


@dataclass(frozen=True)
class Grafted:
    """The outcome of a graft: what to pack or to put into an environment."""

    base: Base
    overlay: Path
    manifest: Manifest
    libraries: tuple[Path, ...]
    layout: BuildDir
    kernels: int  # kernels that generated code calls and the additions define
    compiled: int  # objects that this run compiled
    cuda_note: str  # why there are no CUDA kernels; '' where there are


@dataclass(frozen=True)
class Merged:
    """Additions merged into a base's code generator, and validated by it."""

    tree: MergedTree
    manifest: Manifest
    list_texts: Mapping[str, str]  # files whose lists of operators change, with their new text


def merge_and_validate(
    base: Base, additions: Additions, gated: CheckedBase, layout: BuildDir, ui: Ui
) -> Merged:
    """Apply the patches, merge the YAML, have it validated, and extend the generator's lists."""
    if leftovers := list(symbols.foreign_registrations(additions)):
        raise combined(leftovers)
    patched = text_edits.patched(base, additions, ui)
    with ui.step("check and merge the YAML") as step:
        tree, manifest = merge_and_parse(base, additions, gated.upstream, layout, patched)
        step.say(
            f"{len(additions.native.entries)} operators, "
            f"{len(additions.derivatives.entries)} derivative formulas"
        )
    with ui.step("edit the lists of operators") as step:
        edits = text_edits.list_edits(base, additions, tree, manifest)
        list_texts = apply_list_edits(base, tree, edits)
        step.say(manifest.summary)
    return Merged(tree, manifest, list_texts)


def merge_and_parse(
    base: Base,
    additions: Additions,
    upstream: Upstream,
    layout: BuildDir,
    patched: Mapping[str, str] | None = None,
) -> tuple[MergedTree, Manifest]:
    """Check the additions, merge their YAML, and have PyTorch's own parser read it.

    Raises everything that is refused, by us or by the parser, as one error: what was refused is
    left out and the rest read again, until nothing is.
    """
    errors = list(validate.objections(additions, upstream, base.version))
    errors += formulas.scope_objections(additions, _scope(base, upstream, layout))
    accepted = without(additions, errors)
    while True:
        try:
            tree = merge_yaml(base, accepted, layout, patched)
            manifest = describe(base, accepted, tree, upstream, layout)
            break
        except ForkError as error:
            errors.append(error)
            remaining = without(accepted, [error])
            if remaining == accepted or not remaining.native.entries:
                break
            accepted = remaining
    if errors:
        raise combined(errors)
    return tree, manifest


def _scope(base: Base, upstream: Upstream, layout: BuildDir) -> formulas.Scope:
    """What derivative formulas can name on this base."""
    manual = base.include / "torch" / "csrc" / "autograd" / "FunctionsManual.h"
    header = manual.read_text(encoding="utf-8") if manual.is_file() else ""
    yaml = (base.packaged / "autograd" / "derivatives.yaml").read_text(encoding="utf-8")
    operators = frozenset(schema.partition("(")[0].partition(".")[0] for schema in upstream.schemas)
    folders = ("ATen", "ATen/core", "ATen/native", "torch/csrc/autograd")

    def exported(helpers: Collection[str]) -> set[str]:
        if not symbols.base_libraries(base):
            return set(helpers)
        names = "\n".join(_exports(base, layout).names)
        return {name for name in helpers if f"9generated7details{len(name)}{name}" in names}

    return formulas.Scope(
        words=operators | formulas.words_in(yaml) | formulas.words_in(header),
        operators=operators,
        manual=header,
        elsewhere=lambda wanted: formulas.headers_with(base.include, folders, wanted),
        exported=exported,
    )


def _exports(base: Base, layout: BuildDir) -> Exports:
    """What the base's libraries export, read once a build directory (nm takes a second)."""
    key = files.sha256_text(base.identity, tooling_fingerprint())
    return memo.remember(
        layout.root / "exports.json", key, Exports, lambda: symbols.read_exports(base)
    )


def merge_yaml(
    base: Base,
    additions: Additions,
    layout: BuildDir,
    patched: Mapping[str, str] | None = None,
) -> MergedTree:
    """The base's code generator with the YAML of additions that `validate` has accepted."""
    tree = replace(merge.prepare(base, additions, layout.tree), patched=patched or {})
    schemas = [entry.key for entry in additions.native.entries]
    parser_edits = lists.edit_parser_lists(text_edits.reader(base, tree.patched), schemas)
    merge.apply_edits(base, tree, parser_edits, lists.parser_files())
    return tree


def apply_list_edits(
    base: Base, tree: MergedTree, edits: Sequence[lists.FileEdit]
) -> dict[str, str]:
    """Extend the generator's own lists of operators; every file that changes, with its new text."""
    texts = lists.changed_texts(edits)
    merge.apply_edits(base, tree, texts, lists.edited_files("graft"))
    return texts


def describe(
    base: Base, additions: Additions, tree: MergedTree, upstream: Upstream, layout: BuildDir
) -> Manifest:
    """The generator's description of the additions, kept while YAML and tooling are the same."""
    yamls = (additions.native, additions.derivatives, additions.deprecated)
    parser = [text for name, text in tree.patched.items() if name.startswith("torchgen/")]
    key = files.sha256_text(
        tooling_fingerprint(), base.identity, *(file.text for file in yamls), *parser
    )
    return described(tree, additions, upstream, layout.root, key)


def build(
    base: Base, additions: Additions, gated: CheckedBase, layout: BuildDir, ui: Ui
) -> Grafted:
    """Everything from the merged YAML to the linked libraries, in the overlay.

    The caller holds the layout (see `locked`).
    """
    found_traits = abi.detect(base)
    tools = toolchain.find(base, os.environ)
    merged = merge_and_validate(base, additions, gated, layout, ui)
    tree, manifest = merged.tree, merged.manifest
    with ui.step("generate") as step:
        chosen = generate(base, additions, tree, manifest, layout, cuda=tools.cuda is not None)
        texts = text_edits.all_texts(base, tree, manifest, merged.list_texts)
        overlay.fill(base, additions, gated.wrapper, tree, texts, layout)
        step.say(f"{len(chosen)} generated files have something of the additions in them")
    objects = compile_steps.all_steps(chosen, additions, tools)
    with ui.step("compile") as step:
        build_file = ninja.ninja_file(base, found_traits, tools, objects)
        compiled = compile_objects(build_file, additions, tools, layout, step.advance)
        step.say(f"{compiled} of {len(objects)} objects, {tools.jobs} at once")
    with ui.step("compare declared and defined kernels") as step:
        kernels = compare_symbols(base, additions, objects, layout)
        step.say(f"{kernels} kernels, none missing, none without a declaration")
    with ui.step("link") as step:
        libraries = link.link(base, found_traits, tools, objects, layout.build, layout.overlay)
        step.say(", ".join(f"{p.name} {p.stat().st_size / 1024:.0f} KB" for p in libraries))
    return Grafted(
        base, layout.overlay, manifest, libraries, layout, kernels, compiled, tools.cuda_note
    )


def generate(
    base: Base,
    additions: Additions,
    tree: MergedTree,
    manifest: Manifest,
    layout: BuildDir,
    *,
    cuda: bool,
) -> list[Generated]:
    """Run the generator, and choose the sources that have something of the additions in them."""
    _generate(base, additions, tree, manifest, layout)
    return select.choose(layout.generated, layout.sources, cuda=cuda)


def compile_objects(
    build_file: str,
    additions: Additions,
    tools: Toolchain,
    layout: BuildDir,
    progress: compile_stage.Progress,
) -> int:
    """Compile what a ninja file says; the number of objects that were not up to date."""
    compile_steps.copy_sources(additions, layout)
    return compile_stage.compile_all(build_file, layout.build, tools, additions, progress)


def compare_symbols(
    base: Base, additions: Additions, objects: Sequence[CompileStep], layout: BuildDir
) -> int:
    """Hold the kernels that are declared against those that are defined; how many there are."""
    found = symbols.read_objects(layout.build, objects)
    return symbols.check(additions, found, _exports(base, layout))


def _generate(
    base: Base, additions: Additions, tree: MergedTree, manifest: Manifest, layout: BuildDir
) -> None:
    """Run the generator unless the merged tree and the tooling are those of the last run."""
    key = files.sha256_text(
        tooling_fingerprint(), files.fingerprint(files.tree_files(tree.root), tree.root)
    )
    note = layout.generated / "made-from.json"
    if files.read_json(note) == key:
        return
    templates.make_autograd_templates(base.packaged / "autograd" / "templates", layout.templates)

    def fill(target: Path) -> None:
        client.generate(tree, additions, manifest, layout.templates, target, layout.root)
        files.write_json(target / "made-from.json", key)

    files.build_directory(layout.generated, fill)
