"""The text files of a graft: patched ones, lists that hooks filled, stubs, headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..additions.load import Additions
from ..additions.merged import MergedTree
from ..codegen import gate
from ..codegen.build_dir import BuildDir
from ..codegen.model import Manifest
from ..errors import ForkError
from ..upstream.base import Base
from ..util import cache
from ..util.ui import Ui
from . import base_patches, hooks, overlay, stubs
from .patches import State


def patched(base: Base, additions: Additions, ui: Ui) -> Mapping[str, str]:
    """What the patches of the additions change: files with their new text."""
    series = base_patches.load(additions)
    if not series.folder.is_dir():
        return {}
    with ui.step("apply the patches") as step:
        report = base_patches.plan(base, series, cache.directory())
        report.require()
        applied = len(report.outcomes) - len(report.of(State.NOT_HERE, State.LANDED))
        step.say(f"{applied} patches, {len(report.texts)} files")
    for line in report.attention():
        ui.warn(line)
    return base_patches.texts(report)


def hook_states(
    base: Base, additions: Additions, tree: MergedTree, manifest: Manifest
) -> dict[str, bool | ForkError]:
    """For each file with a list whether it is to be changed, or why it cannot."""
    read = reader(base, tree.patched)
    return hooks.hook_states(read, manifest, "graft", additions.manual_headers)


def hook_edits(
    base: Base, additions: Additions, tree: MergedTree, manifest: Manifest
) -> dict[str, str]:
    """Every file with a list that changes, with its new text."""
    read = reader(base, tree.patched)
    return hooks.text_hooks(read, manifest, "graft", additions.manual_headers)


def reader(base: Base, patched: Mapping[str, str] | None = None) -> Any:
    """Reads a file of the base as the patches leave it: lists are filled after them."""

    def read(relative: str) -> str | None:
        if patched and relative in patched:
            return patched[relative]
        path = base.root / relative
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return read


def assemble_all(
    base: Base,
    additions: Additions,
    wrapper: gate.Wrapper,
    tree: MergedTree,
    manifest: Manifest,
    layout: BuildDir,
) -> None:
    """Bring the overlay's text files up to date; headers must be there before the compiler runs."""
    generated = gate.generated_headers(layout.generated / "all")
    wanted = overlay.headers(base, generated, (wrapper.before, wrapper.after), layout)
    overlay.source_headers(layout.generated / "added", layout)
    wanted |= overlay.additions_headers(additions, layout)
    wanted |= overlay.packaged_yaml(base, tree, layout)
    texts = dict(tree.patched)
    texts.update(hook_edits(base, additions, tree, manifest))
    texts.update(stubs.stub_edits(reader(base, texts), manifest))
    wanted |= overlay.edits(layout, texts)
    overlay.remove_others(layout, wanted)
