"""Lists that upstream keeps by hand, filled from the manifest, in a wheel or a source tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ...codegen.model import Manifest
from ...errors import BaseRefusedError, ForkError
from ...util.blocks import block, place, strip_blocks
from .hook import ListEdit
from .registry import hooks_for, parser_hooks

__all__ = ["hook_states", "hooked_files", "parse_hooks", "text_hooks"]

Lane = Literal["graft", "source"]
Read = Callable[[str], str | None]


def text_hooks(
    read: Read, manifest: Manifest, lane: Lane, extra_headers: Sequence[str]
) -> dict[str, str]:
    """The files that change, by relative path, with their new text. Writes nothing.

    read: gives a file's present text, or None where there is none. Blocks of an earlier run are
        taken out first, so the answer depends on upstream's text and the manifest alone; a file
        that needs no block any more is given back as upstream's.
    lane: "graft" for a directory laid out as site-packages, "source" for a source tree.
    extra_headers: headers that generated autograd code needs, as an #include names them.
    Raises BaseRefusedError, naming file, anchor and purpose, where a place is missing or doubled.
    """
    return _changes(read, hooks_for(lane, tuple(extra_headers)), manifest)


def hooked_files(lane: Lane, *, parser_only: bool = False) -> tuple[str, ...]:
    """Every file that text_hooks, or parse_hooks alone, may change."""
    hooks = parser_hooks() if parser_only else hooks_for(lane, ())
    return tuple(dict.fromkeys(hook.path for hook in hooks))


def parse_hooks(read: Read, schemas: Sequence[str]) -> dict[str, str]:
    """The part of text_hooks that must be in place before torchgen can parse the additions.

    schemas: the 'func' of every added entry. The files (of torchgen itself, at the same paths in
    both lanes) end up as text_hooks makes them.
    """
    return _changes(read, parser_hooks(schemas), Manifest())


def hook_states(
    read: Read, manifest: Manifest, lane: Lane, extra_headers: Sequence[str]
) -> dict[str, bool | ForkError]:
    """For each hooked file whether text_hooks would change it, or why it cannot."""
    states: dict[str, bool | ForkError] = {}
    for path, of_file in _by_path(hooks_for(lane, tuple(extra_headers))).items():
        present = read(path)
        try:
            text = apply_hooks(path, present, of_file, manifest)
            states[path] = text is not None and text != present
        except ForkError as error:
            states[path] = error
    return states


def _by_path(hooks: Sequence[ListEdit]) -> dict[str, list[ListEdit]]:
    by_path: dict[str, list[ListEdit]] = {}
    for hook in hooks:
        by_path.setdefault(hook.path, []).append(hook)
    return by_path


def _changes(read: Read, hooks: Sequence[ListEdit], manifest: Manifest) -> dict[str, str]:
    """Files whose text the hooks change."""
    changed: dict[str, str] = {}
    for path, of_file in _by_path(hooks).items():
        present = read(path)
        text = apply_hooks(path, present, of_file, manifest)
        if text is not None and text != present:
            changed[path] = text
    return changed


def apply_hooks(
    path: str, present: str | None, hooks: Sequence[ListEdit], manifest: Manifest
) -> str | None:
    """One file's new text; None for a file that is not there and that nothing is to be put into."""
    clean = None if present is None else strip_blocks(present, path)
    text = clean
    for hook in hooks:
        lines = hook.render(manifest, clean or "")
        if not lines:
            continue
        if text is None:
            raise BaseRefusedError(
                f"the place {hook.anchor.purpose} is not where every known release has it",
                where=path,
                why="there is no such file",
                next="use a release of ci/releases.toml, or report the release that moved it",
                kind="anchor gone",
            )
        text = place(text, hook.anchor, block(lines, hook.comment, hook.indent), path)
    return text
