"""The graft lane: additions compiled against an official wheel, and a new wheel made of both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import additions as additions_module
from .. import files, hooks, ninjafile, stubs, toolchain, traits, units
from ..additions import Additions
from ..bases.base import Base
from ..merged import MergedTree
from ..stages import assemble, codegen, gate, link, merge, select, symbols, templates, validate
from ..stages import compile as compile_stage
from ..ui import Ui
from ..units import Layout
from .gating import Gated

# How long a second run waits for the first one's build directory.
LOCK_SECONDS = 3600.0


@dataclass(frozen=True)
class Grafted:
    """The outcome of a graft: what to pack or to put into an environment."""

    base: Base
    overlay: Path
    manifest: dict[str, Any]
    libraries: tuple[Path, ...]
    layout: Layout
    kernels: int  # kernels that generated code calls and the additions define
    compiled: int  # objects that this run compiled
    cuda_note: str  # why there are no CUDA kernels; '' where there are


def tooling_fingerprint() -> str:
    """A hash over torchfork's own files: a change of the tooling makes everything anew."""
    package = Path(__file__).resolve().parents[1]
    return files.fingerprint(files.tree_files(package), package)


def layout_for(base: Base, additions: Additions, work: Path) -> Layout:
    """The build directory of these additions on this base; stable between edits."""
    key = files.sha256_text(
        base.identity, str(additions.root), str(base.interpreter.executable),
        os.environ.get("USE_CUDA", ""), os.environ.get("TORCH_CUDA_ARCH_LIST", ""),
        os.environ.get("CXX", ""), os.environ.get("CUDA_HOME", ""),
    )  # fmt: skip
    return Layout(work / f"torch-{base.version}-{base.interpreter.tag}-{key[:12]}")


def merge_and_validate(
    base: Base, additions: Additions, gated: Gated, layout: Layout, ui: Ui
) -> tuple[MergedTree, dict[str, Any]]:
    """Merge the YAML, have it validated, and fill the generator's own lists."""
    with ui.step("merge the YAML") as step:
        validate.check(additions, gated.upstream, base.version)
        tree = merge.prepare(base, additions, layout.tree)
        schemas = [entry.key for entry in additions.native.entries]
        parser_edits = hooks.parse_hooks(_reader(base), schemas)
        in_parser = hooks.hooked_files("graft", parser_only=True)
        merge.apply_edits(base, tree, parser_edits, in_parser)
        step.say(
            f"{len(additions.native.entries)} operators, "
            f"{len(additions.derivatives.entries)} derivative formulas"
        )
    with ui.step("validate with PyTorch's parser") as step:
        manifest = _manifest(base, additions, tree, gated, layout)
        edits = _hook_edits(base, additions, manifest)
        merge.apply_edits(base, tree, edits, hooks.hooked_files("graft"))
        generated = sum(op["generated"] for op in manifest["operators"])
        step.say(f"{len(manifest['operators'])} functions, {generated} of them generated variants")
    return tree, manifest


def _manifest(
    base: Base, additions: Additions, tree: MergedTree, gated: Gated, layout: Layout
) -> dict[str, Any]:
    """The generator's description of the additions, kept while YAML and tooling are the same."""
    yamls = (additions.native, additions.derivatives, additions.deprecated)
    key = files.sha256_text(tooling_fingerprint(), base.identity, *(file.text for file in yamls))
    note = layout.root / "manifest.json"
    known = files.read_json(note)
    if not known or known["key"] != key:
        found = codegen.describe(tree, additions, gated.upstream.schemas, layout.root)
        known = {"key": key, "manifest": found}
        files.write_json(note, known)
    manifest: dict[str, Any] = known["manifest"]
    return manifest


def _hook_edits(base: Base, additions: Additions, manifest: dict[str, Any]) -> dict[str, str]:
    return hooks.text_hooks(_reader(base), manifest, "graft", additions.manual_headers)


def _reader(base: Base) -> Any:
    def read(relative: str) -> str | None:
        path = base.root / relative
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return read


def _assemble(
    base: Base,
    additions: Additions,
    gated: Gated,
    tree: MergedTree,
    manifest: dict[str, Any],
    layout: Layout,
) -> None:
    """Bring the overlay's text files up to date; headers must be there before the compiler runs."""
    generated = gate.generated_headers(layout.generated / "all")
    wrapper = (gated.wrapper.before, gated.wrapper.after)
    wanted = assemble.headers(base, generated, wrapper, layout)
    assemble.source_headers(layout.generated / "added", layout)
    wanted |= assemble.additions_headers(additions, layout)
    wanted |= assemble.packaged_yaml(base, tree, layout)
    wanted |= assemble.edits(layout, _hook_edits(base, additions, manifest))
    wanted |= assemble.edits(layout, stubs.stub_edits(_reader(base), manifest))
    assemble.remove_others(layout, wanted)


def build(base: Base, additions: Additions, gated: Gated, layout: Layout, ui: Ui) -> Grafted:
    """Everything from the merged YAML to the linked libraries, in the overlay.

    The caller holds the layout (see `locked`).
    """
    found_traits = traits.detect(base)
    tools = toolchain.find(base, os.environ)
    tree, manifest = merge_and_validate(base, additions, gated, layout, ui)
    with ui.step("generate") as step:
        _generate(base, additions, tree, manifest, layout)
        chosen = select.choose(layout.generated, layout.sources, cuda=tools.cuda is not None)
        _assemble(base, additions, gated, tree, manifest, layout)
        step.say(f"{len(chosen)} generated files have something of the additions in them")
    objects = units.all_units(chosen, additions, tools)
    with ui.step("compile") as step:
        units_text = ninjafile.ninja_text(base, found_traits, tools, objects)
        compile_stage.link_additions(additions, layout.additions_include)
        compile_stage.copy_support(units.SUPPORT, layout.support)
        compiled = compile_stage.compile_all(
            units_text, layout.build, tools, additions, step.advance
        )
        step.say(f"{compiled} of {len(objects)} objects, {tools.jobs} at once")
    with ui.step("compare declared and defined kernels") as step:
        found = symbols.read_objects(layout.build, objects)
        exports = _exports(base, layout)
        kernels = symbols.check(base, additions, found, exports)
        step.say(f"{kernels} kernels, none missing, none without a declaration")
    with ui.step("link") as step:
        libraries = link.link(base, found_traits, tools, objects, layout.build, layout.overlay)
        step.say(", ".join(f"{p.name} {p.stat().st_size / 1024:.0f} KB" for p in libraries))
    return Grafted(
        base, layout.overlay, manifest, libraries, layout, kernels, compiled, tools.cuda_note
    )


def _generate(
    base: Base, additions: Additions, tree: MergedTree, manifest: dict[str, Any], layout: Layout
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
        codegen.generate(tree, additions, manifest, layout.templates, target, layout.root)
        files.write_json(target / "made-from.json", key)

    files.build_directory(layout.generated, fill)


def _exports(base: Base, layout: Layout) -> set[str]:
    """What the base's libraries export, read once a build directory (nm takes a second)."""
    note = layout.root / "exports.json"
    known = files.read_json(note)
    if known is None:
        known = sorted(symbols.exported(symbols.base_libraries(base)))
        files.write_json(note, known)
    return set(known)


@contextmanager
def locked(layout: Layout, ui: Ui) -> Iterator[None]:
    """Hold a build directory; a second run waits and says for whom."""

    def waiting(holder: str) -> None:
        ui.warn(f"another run holds this build directory: {holder}; waiting for it")

    lock = layout.root.with_name(f"{layout.root.name}.lock")
    with files.lock(lock, f"building in {layout.root.name}", waiting, LOCK_SECONDS):
        layout.root.mkdir(parents=True, exist_ok=True)
        for directory in (layout.root, layout.tree):
            files.remove_leavings(directory)
        yield


def load_additions(root: Path) -> Additions:
    """Read an additions directory."""
    return additions_module.load(root)
