"""Goes through a series on a tree: the state of each patch, and the texts of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from . import diff, exact, merge3, overlay, placing
from .diff import Diff, FileDiff
from .outcome import Conflict, Outcome, Report, State
from .overlay import Overlay
from .series import Entry, Lane, Series
from .tree import Tree, layered

Change = Diff | Overlay


def read(entry: Entry) -> Change:
    """The patch of an entry. Raises PatchError."""
    return diff.read(entry.path) if entry.is_diff else overlay.read(entry.path)


def plan(
    series: Series, tree: Tree, version: str, lane: Lane, ancestors: Sequence[Tree] = ()
) -> Report:
    """What every patch does to a tree. Writes nothing.

    tree: upstream's files of one release, unmodified; see tree.directory.
    version: that release, '2.13.0+cpu'; a nightly counts as the release that it precedes.
    lane: "graft" for a directory laid out as site-packages, "source" for a source tree.
    ancestors: trees of other releases; a patch that does not apply is merged if one of them has the
        very files that it was made from.
    Raises PatchError for a patch that cannot be read; a conflict is for Report.require to raise.
    """
    outcomes: list[Outcome] = []
    texts: dict[str, str | None] = {}
    for number, entry in enumerate(series.entries):
        if not entry.covers(version, lane):
            outcomes.append(Outcome(entry, State.NOT_HERE))
            continue
        earlier = series.entries[:number]
        outcome = judge(entry, layered(tree, texts), lane, ancestors, earlier)
        outcomes.append(outcome)
        texts.update(outcome.texts)
    failed = any(outcome.state is State.CONFLICTS for outcome in outcomes)
    changed = {} if failed else {n: t for n, t in texts.items() if t != tree.read(n)}
    return Report(version, lane, tuple(outcomes), changed, series.variants())


def _prepared(ancestors: Sequence[Tree], earlier: Sequence[Entry], lane: Lane) -> Iterable[Tree]:
    """The ancestors, each with those earlier patches that apply to it; made when looked at."""
    for ancestor in ancestors:
        texts: dict[str, str | None] = {}
        for entry in earlier:
            texts.update(_one(entry, layered(ancestor, texts), lane, ()).texts)
        yield layered(ancestor, texts)


def judge(
    entry: Entry, tree: Tree, lane: Lane, ancestors: Sequence[Tree], earlier: Sequence[Entry]
) -> Outcome:
    """How one patch stands to a tree that has the earlier ones."""
    return _one(entry, tree, lane, _prepared(ancestors, earlier, lane))


def _one(entry: Entry, tree: Tree, lane: Lane, ancestors: Iterable[Tree]) -> Outcome:
    change = read(entry)
    if isinstance(change, Overlay):
        return _overlay(entry, change, tree, lane)
    return _diff(entry, change, tree, ancestors)


def _outcome(
    entry: Entry, change: Change, state: State, texts: Mapping[str, str | None] | None = None,
    note: str = "", conflict: Conflict | None = None,
) -> Outcome:  # fmt: skip
    said = change.header
    return Outcome(entry, state, texts or {}, note, said.upstream, said.why, conflict)


def _overlay(entry: Entry, change: Overlay, tree: Tree, lane: Lane) -> Outcome:
    found = placing.put(tree, change, entry.name, lane)
    if isinstance(found, placing.Trouble):
        conflict = Conflict(found.where, found.file, found.why, found.ours, found.theirs)
        return _outcome(entry, change, State.CONFLICTS, note=found.why, conflict=conflict)
    if found.upstream_has_it:
        return _outcome(entry, change, State.LANDED, note="upstream has all of its lines")
    state = State.APPLIED if found.ours_already else State.APPLIES
    return _outcome(entry, change, state, found.texts)


def _diff(entry: Entry, change: Diff, tree: Tree, ancestors: Iterable[Tree]) -> Outcome:
    # In reverse first: a patch that upstream has may still find a place where it would go twice.
    if exact.is_applied(tree, change.files):
        return _outcome(entry, change, State.LANDED, note="upstream has all of its changes")
    texts = exact.forward(tree, change.files)
    if not isinstance(texts, exact.Misfit):
        return _outcome(entry, change, State.APPLIES, texts)
    merged = merge3.merge(tree, change.files, ancestors)
    if merged is None or (merged.texts is None and not merged.file):
        conflict = _misfit(change, texts, tree)
    elif merged.texts is None:
        place = _where(change, merged)
        why = "upstream has changed the same lines"
        conflict = Conflict(place, merged.file, why, merged.ours, merged.theirs, merged.marked)
    elif not merged.texts:
        return _outcome(entry, change, State.LANDED, note="upstream has all of its changes")
    else:
        moved = [f"{old} is {new} now" for old, new in sorted(merged.renamed.items())]
        note = "; ".join(moved) or f"{texts.file.path} has changed around it"
        return _outcome(entry, change, State.MERGED, merged.texts, note)
    return _outcome(entry, change, State.CONFLICTS, note=conflict.why, conflict=conflict)


def _where(change: Diff, merged: merge3.Merge) -> str:
    """'file:line' of the hunk that a merge conflicts in."""
    names = {new: old for old, new in merged.renamed.items()}
    wanted = names.get(merged.file, merged.file)
    hunks = [hunk for file in change.files if file.path == wanted for hunk in file.hunks]
    ours = set(merged.ours.splitlines(keepends=True))
    best = max(hunks, key=lambda hunk: len(ours & set(hunk.after)), default=None)
    return f"{change.path}:{best.line if best else 1}"


def _misfit(change: Diff, misfit: exact.Misfit, tree: Tree) -> Conflict:
    """A conflict told from the patch alone: no ancestor is at hand."""
    file, hunk = misfit.file, misfit.hunk
    present = tree.read(file.path)
    shown = hunk or next(iter(file.hunks), None)
    where = f"{change.path}:{shown.line if shown else 1}"
    if hunk is None or present is None:
        ours = "".join(file.hunks[0].before if file.hunks else ())
        return Conflict(where, file.path, misfit.why, ours, _moved(file, tree))
    ours = "".join(exact.as_diff(hunk))
    return Conflict(where, file.path, misfit.why, ours, exact.nearest(present, hunk))


def _moved(file: FileDiff, tree: Tree) -> str:
    """Files that have a missing file's lines now."""
    if file.kind == "add" or not file.hunks:
        return ""
    suffix = "." + file.path.rpartition(".")[2]
    wanted = "".join(file.hunks[0].before)
    names = [n for n in tree.names() if n.endswith(suffix) and wanted in (tree.read(n) or "")]
    return "".join(f"its lines are in {name}\n" for name in names[:4])
