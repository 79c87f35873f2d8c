"""Fills the overlay: headers, packaged YAML, edited Python files and stubs that the wheel gets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..additions.load import Additions
from ..additions.merge import MERGED_FILES, MergedTree
from ..codegen import header_check
from ..codegen.build_dir import BuildDir
from ..upstream.base import Base
from ..util.files import tree_files, write_if_changed

# Compiled into libtorch with their present values: a wheel's own must stay.
KEPT_HEADERS = frozenset({"ATen/core/aten_interned_strings.h", "ATen/core/enum_tag.h",
                          "torch/headeronly/core/enum_tag.h"})  # fmt: skip


def fill(
    base: Base,
    additions: Additions,
    wrapper: header_check.Wrapper,
    tree: MergedTree,
    texts: Mapping[str, str],
    layout: BuildDir,
) -> None:
    """Bring the overlay's files up to date; headers must be there before the compiler runs.

    texts: every text file that changes, by path relative to site-packages.
    """
    generated = header_check.generated_headers(layout.generated / "all")
    wanted = headers(base, generated, wrapper, layout)
    source_headers(layout.generated / "added", layout)
    wanted |= additions_headers(additions, layout)
    wanted |= packaged_yaml(base, tree, layout)
    wanted |= edits(layout, texts)
    remove_others(layout, wanted)


def headers(
    base: Base,
    generated: Iterator[tuple[Path, str]],
    wrapper: header_check.Wrapper,
    layout: BuildDir,
) -> set[Path]:
    """Write the headers that differ from the base's; those that wheels leave out go to private.

    Gives the files of the overlay that are wanted.
    """
    wanted: set[Path] = set()
    shipped_folders = {"ATen/ops"}
    for path, relative in generated:
        if relative in KEPT_HEADERS:
            continue
        text = path.read_text(encoding="utf-8")
        installed = base.include / relative
        if not installed.is_file() and str(Path(relative).parent) not in shipped_folders:
            write_if_changed(layout.private / relative, text)
            continue
        wrapped = wrapper.around(text)
        if installed.is_file() and installed.read_text(encoding="utf-8") in (text, wrapped):
            continue
        target = layout.overlay / "torch" / "include" / relative
        write_if_changed(target, wrapped)
        wanted.add(target)
    return wanted


def source_headers(generated: Path, layout: BuildDir) -> None:
    """Headers that come with the generated sources (ViewMetaClasses.h): no wheel carries them."""
    for path in sorted((generated / "ATen").glob("*.h")):
        write_if_changed(layout.private / "ATen" / path.name, path.read_bytes())


def additions_headers(additions: Additions, layout: BuildDir) -> set[Path]:
    """The additions' own headers, where an in-tree build installs them."""
    wanted = set()
    for path in additions.headers:
        relative = path.relative_to(additions.source_root)
        target = layout.overlay / "torch" / "include" / "ATen" / relative
        write_if_changed(target, path.read_bytes())
        wanted.add(target)
    return wanted


def packaged_yaml(base: Base, tree: MergedTree, layout: BuildDir) -> set[Path]:
    """The merged YAML files, so that a codegen run from the wheel knows the operators."""
    wanted = set()
    for key, relative in MERGED_FILES.items():
        if tree.merged[key].text != (base.root / relative).read_text(encoding="utf-8"):
            write_if_changed(layout.overlay / relative, tree.merged[key].text)
            wanted.add(layout.overlay / relative)
    return wanted


def edits(layout: BuildDir, texts: Mapping[str, str]) -> set[Path]:
    """Edited text files: patched ones, operator lists, type stubs."""
    wanted = set()
    for relative, text in texts.items():
        # As it was read: a byte that is no UTF-8 is a surrogate in the text.
        write_if_changed(layout.overlay / relative, text.encode("utf-8", "surrogateescape"))
        wanted.add(layout.overlay / relative)
    return wanted


def remove_others(layout: BuildDir, wanted: set[Path]) -> None:
    """Take out of the overlay what an earlier build put there and this one does not."""
    for path in tree_files(layout.overlay):
        if path not in wanted and not re.search(r"\.so(\.\d+)*$", path.name):
            path.unlink()
