"""Puts a folder's new files and hooks onto a tree, and sees whether they are there already."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import BaseRefusedError
from ...util.blocks import named_block, place, strip_named
from .overlay import ABOUT, AnchoredBlock, Overlay
from .series import Lane
from .tree import Tree


@dataclass(frozen=True)
class Trouble:
    """The first thing that keeps a folder's patch from a tree."""

    where: str
    file: str
    why: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class Placed:
    """The texts that change, and what was there before: our own blocks, or all of it unmarked."""

    texts: dict[str, str | None]
    ours_already: bool
    upstream_has_it: bool


def put(tree: Tree, overlay: Overlay, name: str, lane: Lane) -> Placed | Trouble:
    """All files and hooks, or the first that has no place."""
    texts: dict[str, str | None] = {}
    there = 0
    marked = False
    hooks = [hook for hook in overlay.hooks if hook.lane in ("both", lane)]
    for path, text in overlay.added:
        present = tree.read(path)
        if present is not None and present != text:
            return _occupied(overlay, path, text, present)
        there += present is not None
        texts[path] = text
    for hook in hooks:
        present = tree.read(hook.file)
        if present is None:
            why = "the file that a hook goes into is not there"
            return _trouble(overlay, hook, why, _elsewhere(tree, hook))
        clean = strip_named(present, name, hook.file)
        marked |= clean != present
        if _unmarked(clean, hook):
            there += 1
            continue
        try:
            inserted = named_block(hook.text, name, hook.comment)
            base = texts.get(hook.file) or clean
            texts[hook.file] = place(base, hook.anchor, inserted, hook.file)
        except BaseRefusedError as error:
            return _trouble(overlay, hook, _said(error), _near(clean, hook))
    whole = there == len(overlay.added) + len(hooks)
    if there and not whole and not marked:
        return _partly(overlay, hooks, texts, tree)
    return Placed(texts, marked, whole and not marked)


def _unmarked(text: str, hook: AnchoredBlock) -> bool:
    """Whether upstream has a hook's lines, all of them together, as its own.

    Beside the anchor where that is there once: a line like 'import math' may well stand elsewhere.
    """
    body = [line.strip() for line in hook.text.splitlines() if line.strip()]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if line == body[0]]
    anchors = [i for i, line in enumerate(lines) if line in {a.strip() for a in hook.anchors}]
    if len(anchors) == 1:
        beside = anchors[0] + 1 if hook.place == "after" else anchors[0] - len(body)
        starts = [i for i in starts if i == beside]
    return any(lines[i : i + len(body)] == body for i in starts)


def _said(error: BaseRefusedError) -> str:
    return "its anchor is not there once" + (f" ({error.why})" if error.why else "")


def _occupied(overlay: Overlay, path: str, text: str, present: str) -> Trouble:
    why = "upstream has a file of that name with other contents"
    return Trouble(f"{overlay.path / path}:1", path, why, _start(text), _start(present))


def _start(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:8])


def _trouble(overlay: Overlay, hook: AnchoredBlock, why: str, theirs: str) -> Trouble:
    ours = f"{hook.anchor.purpose}:\n{hook.text}"
    return Trouble(f"{overlay.path / ABOUT}:{hook.line}", hook.file, why, ours, theirs)


def _partly(
    overlay: Overlay, hooks: list[AnchoredBlock], texts: dict[str, str | None], tree: Tree
) -> Trouble:
    """Upstream has a part of the patch; whether the rest is still wanted is a person's to say."""
    has = [path for path, text in overlay.added if tree.read(path) == text]
    has += [h.file for h in hooks if _unmarked(tree.read(h.file) or "", h)]
    return Trouble(
        f"{overlay.path / ABOUT}:1", has[0], "upstream has a part of it", "\n".join(sorted(texts)),
        "there already: " + ", ".join(sorted(set(has))),
    )  # fmt: skip


def _near(text: str, hook: AnchoredBlock) -> str:
    """Upstream's lines that a missing or doubled anchor could be."""
    words = {word for anchor in hook.anchors for word in re.findall(r"\w{3,}", anchor)}
    lines = [
        (len(words & set(re.findall(r"\w{3,}", line))), number, line)
        for number, line in enumerate(text.splitlines(), 1)
    ]
    best = sorted((item for item in lines if item[0]), key=lambda item: (-item[0], item[1]))[:4]
    return "".join(f"{number}: {line}\n" for _, number, line in sorted(best, key=lambda i: i[1]))


def _elsewhere(tree: Tree, hook: AnchoredBlock) -> str:
    """Files that have the anchor now."""
    if not hook.anchors:
        return ""
    suffix = "." + hook.file.rpartition(".")[2]
    names = [name for name in tree.names() if name.endswith(suffix)]
    found = [
        name for name in names if set(hook.anchors) & set((tree.read(name) or "").splitlines())
    ]
    return "".join(f"the anchor is in {name}\n" for name in found[:4])
