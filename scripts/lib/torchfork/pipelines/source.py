"""A source build, first half: additions merged into a full tree of PyTorch's sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..additions import merge, validate
from ..additions.load import Additions
from ..additions.merge import MERGED_FILES, MergedTree, merge_text
from ..codegen import client, templates
from ..codegen.build_dir import GENERATOR_ROOMS, BuildDir, tooling_fingerprint
from ..codegen.model import Manifest
from ..edits import lists, patches
from ..errors import AdditionsError, NeedsSourceLaneError, StateError, combined
from ..native.compile_steps import SUPPORT
from ..state import source_tree
from ..state.journal import Changes
from ..upstream import python_names
from ..upstream.base import Upstream
from ..upstream.tree import ATEN, Mirror, SourceTree, in_tree, mirror_generator
from ..util import files, memo
from ..util.ui import Ui
from . import graft

Read = Callable[[str], str | None]


@dataclass(frozen=True)
class Planned:
    """What an apply puts into a tree: everything is checked, nothing is written."""

    contents: source_tree.Wanted
    added: frozenset[str]  # those that are new files
    manifest: Manifest
    upstream: Upstream  # what the tree has without them


def plan(tree: SourceTree, additions: Additions, layout: BuildDir, ui: Ui) -> Planned:
    """Merge, have the tree's own code generator validate it, and say which files change how.

    The caller holds the layout. Errors name the line of the additions' files.
    """
    # As the tree's commit has it, whatever is applied.
    unapplied = patches.Tree(source_tree.reader(tree), patches.directory(tree.root).names)
    patched = graft.apply_patches(additions, unapplied, tree.version, "source", ui)
    read = patches.layered(unapplied, patched).read
    with ui.step("read the tree") as step:
        copy = mirror_generator(tree, read, layout.mirror, tuple(patched))
        upstream = _list_operators(tree, read, copy, layout)
        step.say(f"torch {tree.version}, {len(upstream.schemas)} functions")
    with ui.step("merge the YAML") as step:
        _validate(additions, upstream, tree.version)
        merged = _merge(copy, additions, layout)
        step.say(
            f"{len(additions.native.entries)} operators, "
            f"{len(additions.derivatives.entries)} derivative formulas"
        )
    with ui.step("validate with PyTorch's generator") as step:
        generator = tooling_fingerprint(GENERATOR_ROOMS)
        key = files.sha256_text(copy.fingerprint, generator, additions.fingerprint())
        manifest = memo.remember(
            layout.root / "manifest.json", key, Manifest,
            lambda: client.describe(merged, additions, upstream.schemas, layout.root),
        )  # fmt: skip
        edits = lists.edit_lists(
            read, manifest, "source", additions.manual_headers, additions.fake_impls
        )
        _try_once(key, copy, merged, edits, additions, manifest, layout)
        step.say(manifest.summary)
    contents, added = _contents(read, additions, {**patched, **edits}, layout)
    return Planned(contents, added, manifest, upstream)


def _validate(additions: Additions, upstream: Upstream, version: str) -> None:
    """What a wheel cannot take needs a patch here: additions themselves only ever add."""
    errors = [
        AdditionsError(
            error.what,
            where=error.where,
            why="additions are inserted beside what upstream has, in a source build too",
            next="rename yours, or change upstream's own files by a patch in patches/",
        )
        if isinstance(error, NeedsSourceLaneError)
        else error
        for error in validate.objections(additions, upstream, version)
    ]
    if errors:
        raise combined(errors)


def _list_operators(tree: SourceTree, read: Read, copy: Mirror, layout: BuildDir) -> Upstream:
    """What the tree has; its code generator is asked once for each state of it."""
    key = files.sha256_text(copy.fingerprint, tooling_fingerprint(GENERATOR_ROOMS))
    upstream = memo.remember(
        layout.root / "upstream.json", key, Upstream,
        lambda: client.list_operators(copy.root, layout.root),
    )  # fmt: skip
    compiled = (tree.root / "torch/csrc").rglob("*.cpp")
    attributes = python_names.attributes(read, tree.root, compiled, tree.root / "aten" / "src")
    return replace(upstream, attributes=attributes)


def _merge(copy: Mirror, additions: Additions, layout: BuildDir) -> MergedTree:
    """A copy of the generator that can parse the additions."""
    for path in files.tree_files(copy.root):
        relative = path.relative_to(copy.root)
        if relative.as_posix() not in MERGED_FILES.values():
            files.write_if_changed(layout.tree / relative, path.read_bytes())
    return graft.merge_yaml(copy, additions, layout.tree)


def _try_once(
    key: str,
    copy: Mirror,
    merged: MergedTree,
    edits: Mapping[str, str],
    additions: Additions,
    manifest: Manifest,
    layout: BuildDir,
) -> None:
    """Report what the generator refuses before the long build, which generates again.

    The wrapped Meta kernels are kept: only torchfork's own generator makes them.
    """
    note = layout.root / "generated.json"
    if files.read_json(note) == key and layout.symbolic_meta.is_file():
        return
    editable = lists.edited_files("graft")
    in_wheel = {name: edits[in_tree(name)] for name in editable if in_tree(name) in edits}
    merge.apply_edits(copy, merged, in_wheel, editable)
    client.try_sources(merged, additions, manifest, layout.root, symbolic_meta=layout.symbolic_meta)
    files.write_json(note, key)


def _contents(
    read: Read, additions: Additions, texts: Mapping[str, str | None], layout: BuildDir
) -> tuple[source_tree.Wanted, frozenset[str]]:
    """The contents of every file that an apply writes, and which of them are new."""
    contents = {
        name: None if text is None else patches.encode(text) for name, text in texts.items()
    }
    for key, ours in merge.yaml_files(additions).items():
        name = in_tree(MERGED_FILES[key])
        upstream = read(name)
        if upstream is not None and ours.entries:
            contents[name] = merge_text(upstream, ours, name).text.encode()
    copied = {
        f"{ATEN}/{path.relative_to(additions.source_root).as_posix()}": path.read_bytes()
        for path in additions.sources
    }
    made, header = templates.SYMBOLIC_SOURCE, templates.SYMBOLIC_HEADER
    for name, path in ((made, layout.symbolic_meta), (header, SUPPORT / header)):
        copied[f"{templates.SYMBOLIC_IN_TREE}/{name}"] = path.read_bytes()
    return {**contents, **copied}, frozenset(copied)


def put_in(tree: SourceTree, planned: Planned, additions: Additions, ui: Ui) -> Changes:
    """Write what was planned. Raises StateError where somebody has edited a file meanwhile."""
    with ui.step("apply to the tree") as step:
        changes = source_tree.apply(tree, planned.contents, additions.root, added=planned.added)
        step.say(
            f"{len(changes.written)} files written, {changes.unchanged} as they were"
            + (
                f", {len(changes.restored) + len(changes.removed)} taken back"
                * bool(changes.restored or changes.removed)
            )
        )
    return changes


def require_same_additions(tree: SourceTree, additions: Additions) -> None:
    """Refuse to replace other additions silently."""
    status = source_tree.status(tree)
    if status and status.additions != str(additions.root):
        raise StateError(
            "other additions are applied to this tree",
            where=str(tree.root),
            why=f"applied: {status.additions}\nasked:   {additions.root}",
            next="scripts/torchfork unapply first",
        )
