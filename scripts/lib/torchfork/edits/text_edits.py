"""The text files of a graft that change: by patches, by list edits, and the type stubs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..additions.load import Additions
from ..additions.merge import MergedTree
from ..codegen.model import Manifest
from ..upstream.base import Base
from ..util import cache
from ..util.ui import Ui
from . import lists, patches, stubs
from .patches import State


def patched(base: Base, additions: Additions, ui: Ui) -> Mapping[str, str]:
    """What the patches of the additions change: files with their new text."""
    if not patches.load(additions.root).folder.is_dir():
        return {}
    with ui.step("apply the patches") as step:
        report = patches.plan_base(base, additions, cache.directory())
        report.require()
        applied = len(report.outcomes) - len(report.of(State.NOT_HERE, State.LANDED))
        step.say(f"{applied} patches, {len(report.texts)} files")
    for line in report.attention():
        ui.warn(line)
    return patches.wheel_texts(report)


def reader(base: Base, texts: Mapping[str, str]) -> Callable[[str], str | None]:
    """Reads a file of the base, or its text in `texts` (edits come on top of patches)."""

    def read(relative: str) -> str | None:
        if relative in texts:
            return texts[relative]
        path = base.root / relative
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return read


def list_edits(
    base: Base, additions: Additions, tree: MergedTree, manifest: Manifest
) -> list[lists.FileEdit]:
    """What happens to each file with a list of operators."""
    read = reader(base, tree.patched)
    return lists.edit_files(read, manifest, "graft", additions.manual_headers)


def all_texts(
    base: Base, tree: MergedTree, manifest: Manifest, list_texts: Mapping[str, str]
) -> dict[str, str]:
    """Every text file that changes; list_texts: those that list edits changed."""
    texts = {**tree.patched, **list_texts}
    return {**texts, **stubs.stub_edits(reader(base, texts), manifest)}
