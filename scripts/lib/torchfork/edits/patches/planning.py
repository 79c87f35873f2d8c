"""What the patches of a series make of a tree, how each stands to it, and their lint."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ...additions.load import Additions
from ...errors import AdditionsError, ForkError, PatchConflictError, PatchError, combined
from .. import BuildMode, Texts, Tree, directory, layered
from .folders import Folder, read_folder
from .git import Diff, read_diff
from .series import BUILD_MODES, SERIES, Outcome, Patch, Series, State, load

README = "README.md"
Change = Diff | Folder
_COMPILED = frozenset({".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".cuh", ".mm", ".S", ".metal"})
_PACKAGES = frozenset({"torch", "torchgen", "functorch"})
# States that a build accepts although patches/ needs an edit: what the rebase report calls them.
_NEEDS_EDIT = {State.LANDED: "patch landed upstream", State.MERGED: "patch needs refresh"}


@dataclass(frozen=True)
class Report:
    """All patches of a series on one tree.

    texts: every file that the patches together change, by path, with its new text (None: the file
        goes). Empty where a patch conflicts: all or nothing.
    """

    version: str
    build_mode: str
    outcomes: tuple[Outcome, ...]
    texts: Texts
    variants: int

    @property
    def conflicts(self) -> list[Outcome]:
        """The patches that do not fit."""
        return self.of(State.CONFLICTS)

    @property
    def ok(self) -> bool:
        """Whether nothing conflicts."""
        return not self.conflicts

    def of(self, *states: State) -> list[Outcome]:
        """The outcomes of these states."""
        return [outcome for outcome in self.outcomes if outcome.state in states]

    def attention(self) -> list[str]:
        """A line for each patch that works here and still needs an edit of patches/."""
        return [f"{o.name}: {o.note}; {self._advice(o)}" for o in self.of(*_NEEDS_EDIT)]

    def objections(self) -> list[PatchConflictError]:
        """An error for each patch that is not as it should be for this release, in their order.

        Stricter than require(): a build goes on with a patch that landed or was merged; who carries
        the series to a release has to know.
        """
        return [self._error(o) for o in self.of(State.CONFLICTS, *_NEEDS_EDIT)]

    def require(self) -> None:
        """Raise PatchConflictError for the patches that conflict."""
        if self.conflicts:
            raise combined([self._error(outcome) for outcome in self.conflicts])

    @property
    def _release(self) -> str:
        return self.version.partition("+")[0]

    def _error(self, outcome: Outcome) -> PatchConflictError:
        if outcome.state is State.CONFLICTS:
            return outcome.error(self._release, self.build_mode)
        what = f"the patch '{outcome.name}' {outcome.state.value}"
        return PatchConflictError(
            f"{what} on torch {self._release}"
            if outcome.state is State.MERGED
            else f"{what}: torch {self._release} has it",
            where=outcome.patch.where(),
            why=f"{outcome.note}\nthe patch exists because: {outcome.why}",
            next=self._advice(outcome),
            kind=_NEEDS_EDIT[outcome.state],
        )

    def _advice(self, outcome: Outcome) -> str:
        if outcome.state is State.LANDED:
            return f"end its range before {self._release} in the series (<{self._release}), or " \
                "drop it"  # fmt: skip
        return (
            f"scripts/torchfork patch edit --torch {self._release} --lane {self.build_mode}, "
            "then scripts/torchfork patch refresh"
        )


def read(patch: Patch) -> Change:
    """What a patch says. Raises PatchError."""
    return read_diff(patch) if patch.is_diff else read_folder(patch)


def plan(
    series: Series, tree: Tree, version: str, mode: BuildMode, ancestors: Sequence[Tree] = ()
) -> Report:
    """What every patch does to a tree. Writes nothing.

    tree: upstream's files of one release, unmodified; see edits.directory.
    version: that release, '2.13.0+cpu'; a nightly counts as the release that it precedes.
    mode: "graft" for a directory laid out as site-packages, "source" for a source tree.
    ancestors: trees of other releases; a patch that does not apply is merged if one of them has the
        very files that it was made from.
    Raises PatchError for a patch that cannot be read; a conflict is for Report.require to raise.
    """
    outcomes: list[Outcome] = []
    texts: dict[str, str | None] = {}
    for number, patch in enumerate(series.patches):
        outcome = Outcome(patch, None, State.NOT_HERE)
        if patch.covers(version, mode):
            earlier = series.patches[:number]
            outcome = judge(patch, layered(tree, texts), mode, ancestors, earlier)
        outcomes.append(outcome)
        texts.update(outcome.texts)
    report = Report(version, mode, tuple(outcomes), {}, series.variants())
    changed = {name: text for name, text in texts.items() if text != tree.read(name)}
    return replace(report, texts=changed) if report.ok else report


def judge(
    patch: Patch, tree: Tree, mode: BuildMode, ancestors: Sequence[Tree] = (),
    earlier: Sequence[Patch] = (),
) -> Outcome:  # fmt: skip
    """How one patch stands to a tree that has the earlier ones."""
    change = read(patch)
    if isinstance(change, Folder):
        return change.judge(tree, mode)
    return change.judge(tree, _with_earlier(ancestors, earlier, mode))


def _with_earlier(
    ancestors: Sequence[Tree], earlier: Sequence[Patch], mode: BuildMode
) -> Iterator[Tree]:
    """The ancestors, each with those earlier patches that apply to it; made when looked at."""
    for ancestor in ancestors:
        tree = ancestor
        for patch in earlier:
            tree = layered(tree, judge(patch, tree, mode).texts)
        yield tree


def plan_additions(
    additions: Additions, tree: Tree, version: str, mode: BuildMode, cache: Path
) -> Report:
    """The state of every patch of additions on a tree, as `plan` has it. Writes nothing.

    cache: unpacked wheels lie there, which have the Python files of a source tree, too: a patch
        that was made on one of them can be merged.
    Raises PatchError for one that is malformed or that the build mode cannot take.
    """
    series = load(additions.root)
    check(series)
    return plan(series, tree, version, mode, origins(cache))


def origins(cache: Path) -> list[Tree]:
    """The unpacked bases in the cache."""
    folder = cache / "unpacked"
    roots = sorted(folder.iterdir()) if folder.is_dir() else []
    return [directory(root) for root in roots if not root.name.startswith(".")]


def wheel_texts(texts: Texts) -> Mapping[str, str]:
    """The texts of a graft's patches. Raises PatchError for a file that goes."""
    gone = [name for name, text in texts.items() if text is None]
    for name in gone:
        raise PatchError(
            f"a patch takes {name} away, which a graft cannot",
            why="a wheel is made of an official one and the files that differ from it",
            next="empty the file, or give the patch the lane 'source' in the series",
        )
    return {name: text for name, text in texts.items() if text is not None}


def check(series: Series, versions: Sequence[str] = ()) -> None:
    """Raise every fault that lint finds, as one error."""
    faults = lint(series, versions)
    if faults:
        raise combined(faults)


def lint(series: Series, versions: Sequence[str] = ()) -> list[ForkError]:
    """Every fault of a patches folder, whatever the release, in the order of the series.

    versions: the releases that are supported; a patch for none of them is unused. Without them
        nothing is, and any two ranges are taken to meet nowhere.
    """
    found: list[ForkError] = [*_listing(series, versions)]
    changes: dict[str, tuple[Patch, Change]] = {}
    for patch in series.patches:
        if patch.name in changes or not os.path.lexists(patch.path):
            continue  # reported already
        try:
            changes[patch.name] = patch, read(patch)
        except (PatchError, AdditionsError) as error:
            found.append(error)
            continue
        found += _one(*changes[patch.name])
    for first, second in itertools.combinations(changes.values(), 2):
        found += _pair(*first, *second, versions)
    return found


def _listing(series: Series, versions: Sequence[str]) -> Iterator[PatchError]:
    """What series and folder say of each other: orphans, and names without a file, or twice."""
    there = {p.name for p in series.folder.iterdir()} if series.folder.is_dir() else set()
    listed = {patch.name for patch in series.patches}
    for name in sorted(there - listed - {SERIES, README}):
        if not name.startswith("."):
            yield PatchError(
                f"an orphan: '{name}' is not in the series",
                where=str(series.folder / name),
                why="nothing applies it",
                next=f"add a line to {series.folder / SERIES}, or delete it",
            )
    seen: dict[str, Patch] = {}
    for patch in series.patches:
        where = patch.where()
        first = seen.setdefault(patch.name, patch)
        if not os.path.lexists(patch.path):
            yield PatchError(
                f"'{patch.name}' is in the series and not in the folder",
                where=where,
                next="delete the line, or bring the patch back",
            )
        if first is not patch:
            yield PatchError(
                f"a duplicate: '{patch.name}' stands twice in the series",
                where=where,
                why=f"{first.where()} has it already",
                next="delete one of the two lines",
            )
        if versions and not any(map(patch.covers_version, versions)):
            yield PatchError(
                f"unused: no supported release is in the range of '{patch.name}'",
                where=where,
                why=f"{patch.versions} has none of {', '.join(versions)}",
                next="correct the range, or delete the patch and its line",
            )


def _one(patch: Patch, change: Change) -> Iterator[PatchError]:
    """Faults of one patch by itself."""
    if isinstance(change, Folder):
        if not change.added and not change.hooks:
            yield PatchError("a patch that changes nothing", where=str(patch.path))
    elif not change.text.startswith(change.mail_head):
        yield PatchError(
            f"the header of '{patch.name}' is not as torchfork exports it",
            where=f"{patch.path}:1",
            next="scripts/torchfork patch edit, then refresh",
        )
    for mode in BUILD_MODES[:2]:
        for path in change.touched(mode) if patch.build_mode in (mode, "both") else ():
            why = _not_in(path, mode)
            if why:
                yield PatchError(
                    f"'{patch.name}' touches {path}, which a {mode} build cannot change",
                    where=patch.where(),
                    why=why,
                    next="give it the lane 'source' in the series (in patch.toml for one hook); "
                    "scripts/build_torch.sh --from-source applies it"
                    if mode == "graft"
                    else "give it the lane 'graft', and the sources a patch of their own",
                )


def _not_in(path: str, mode: str) -> str:
    """Why a build mode has not the file; '' where it has."""
    parts = PurePosixPath(path).parts
    if mode == "source":
        in_wheel = parts[:2] in (("torch", "include"), ("torchgen", "packaged"))
        return "only wheels have this folder; sources have the file elsewhere" if in_wheel else ""
    if PurePosixPath(path).suffix in _COMPILED or parts[:2] == ("torch", "csrc"):
        return "it is compiled into the official wheel's libraries, which stay as they are"
    if parts[0] not in _PACKAGES or path.endswith(".in"):
        return "an official wheel does not carry it"
    if parts[:2] == ("torchgen", "packaged") and path.endswith(".yaml"):
        return "operators are declared in the additions' own YAML files, which are merged into it"
    return ""


def _pair(
    first: Patch, a: Change, second: Patch, b: Change, versions: Sequence[str]
) -> Iterator[PatchError]:
    """Faults of two patches together."""
    if isinstance(a, Diff) and isinstance(b, Diff) and a.changes == b.changes:
        yield PatchError(
            f"a duplicate: '{second.name}' changes what '{first.name}' changes",
            where=second.where(), why=f"the same lines as {first.where()}",
            next="delete one of the two",
        )  # fmt: skip
        return
    if first.concern != second.concern and a.header.subject == b.header.subject:
        yield PatchError(
            f"'{first.name}' and '{second.name}' have the same subject",
            where=str(second.path), why="git finds the commit of a --fixup by its subject",
            next="say in each what it does",
        )  # fmt: skip
    together = [v for v in versions if first.covers_version(v) and second.covers_version(v)]
    if {first.build_mode, second.build_mode} == {"graft", "source"} or not together:
        return
    if first.concern == second.concern:
        yield PatchError(
            f"two variants of '{first.concern}' are for the same release",
            where=second.where(), why=f"{first.where()} has {', '.join(together)} too",
            next="make their ranges exclude each other",
        )  # fmt: skip
    for path in sorted(set(a.new_files) & set(b.new_files)):
        yield PatchError(
            f"'{first.name}' and '{second.name}' both add {path}",
            where=second.where(), next="let one of them add it",
        )  # fmt: skip
