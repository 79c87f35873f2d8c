"""The text files that a graft changes or adds, written into the build's overlay directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..additions.load import Additions
from ..additions.merge import MERGED_FILES, MergedTree
from ..codegen.build_dir import BuildDir
from ..codegen.header_check import Wrapper, generated_headers
from ..codegen.model import Manifest
from ..upstream.base import Base
from ..util import cache
from ..util.files import tree_files, write_if_changed
from ..util.ui import Ui
from . import lists, patches, stubs
from .patches import State

# Compiled into libtorch with their present values: a wheel's own must stay.
KEPT_HEADERS = frozenset({"ATen/core/aten_interned_strings.h", "ATen/core/enum_tag.h",
                          "torch/headeronly/core/enum_tag.h"})  # fmt: skip
INCLUDE = "torch/include"


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


def reader(base: Base, texts: Mapping[str, str]) -> lists.Read:
    """Reads a file of the base, or its text in `texts` (edits come on top of patches)."""
    return patches.layered(patches.directory(base.root), texts).read


def list_edits(
    base: Base, additions: Additions, tree: MergedTree, manifest: Manifest
) -> list[lists.FileEdit]:
    """What happens to each file with a list of operators."""
    read = reader(base, tree.patched)
    return lists.edit_files(read, manifest, "graft", additions.manual_headers, additions.fake_impls)


def fill_overlay(
    base: Base,
    additions: Additions,
    wrapper: Wrapper,
    tree: MergedTree,
    manifest: Manifest,
    list_texts: Mapping[str, str],
    layout: BuildDir,
) -> None:
    """Bring the overlay's files up to date; headers must be there before the compiler runs.

    list_texts: the files that list edits changed, by path relative to site-packages.
    """
    texts = {**tree.patched, **list_texts}
    texts |= stubs.stub_edits(reader(base, texts), manifest)
    wanted = {
        **dict(_headers(base, wrapper, layout)),
        # The additions' own headers, where an in-tree build installs them.
        **{
            f"{INCLUDE}/ATen/{path.relative_to(additions.source_root)}": path.read_bytes()
            for path in additions.headers
        },
        **dict(_packaged_yaml(base, tree)),
        **{name: patches.encode(text) for name, text in texts.items()},
    }
    for name, data in wanted.items():
        write_if_changed(layout.overlay / name, data)
    linked_later = {"torch/lib/libtorch.so", base.extension.as_posix()}
    for path in tree_files(layout.overlay):
        # What an earlier build put there and this one does not.
        if path.relative_to(layout.overlay).as_posix() not in wanted.keys() | linked_later:
            path.unlink()


def _headers(base: Base, wrapper: Wrapper, layout: BuildDir) -> Iterator[tuple[str, bytes]]:
    """The headers that differ from the base's; those that no wheel carries go to layout.private."""
    for path in sorted((layout.generated / "added" / "ATen").glob("*.h")):
        write_if_changed(layout.private / "ATen" / path.name, path.read_bytes())
    for path, relative in generated_headers(layout.generated / "all"):
        if relative in KEPT_HEADERS:
            continue
        text = path.read_text(encoding="utf-8")
        installed = base.include / relative
        if not installed.is_file() and not relative.startswith("ATen/ops/"):
            write_if_changed(layout.private / relative, text)
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
