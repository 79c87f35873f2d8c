"""The workbench: a git tree with a commit for each patch, to edit them in; commits into patches."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ...errors import PatchError, StateError, UsageError
from ...upstream import git as clone
from ...util import files, memo
from .. import BuildMode, Texts, Tree, decode, directory, encode, inside, write
from . import git, planning
from .folders import Folder
from .planning import Report
from .series import SERIES, Header, Outcome, Patch, Series, State, load, parse_header, parse_line

TRAILER = "Patch: "
MARK = "<<<<<<< "
# What is copied of upstream's: files that people edit. Headers of a wheel are generated.
_SUFFIXES = frozenset(
    {".py", ".pyi", ".in", ".h", ".hpp", ".cpp", ".cu", ".cuh", ".c", ".mm", ".rst", ".md", ".txt"}
    | {".cmake", ".yaml", ".yml", ".toml"}
)
_LEFT_OUT = ("torch/include/", "torch/lib/", "torch/share/", "third_party/")
# Files below patches/ with their new contents, None for one that goes.
Contents = Mapping[Path, bytes | None]


@dataclass(frozen=True)
class Bench:
    """A workbench on disk and how far it is."""

    root: Path
    folder: Path  # the patches folder that it belongs to
    version: str
    build_mode: BuildMode
    upstream: str  # the commit of upstream's files
    pending: tuple[str, ...]  # patches that are still to be applied
    conflict: str = ""  # the patch whose conflict is in the working tree
    landed: tuple[str, ...] = ()

    @property
    def release(self) -> str:
        """The version without its local part."""
        return self.version.partition("+")[0]

    def git(self, *arguments: str) -> str:
        """What git prints in the workbench."""
        return git.git(self.root, *arguments).stdout

    def uncommitted(self) -> Texts:
        """The files that differ from the last commit, whether they are staged or not."""
        self.git("add", "--all", "--force", ".")
        names = self.git("diff", "--cached", "--name-only", "--no-renames", "-z", "HEAD")
        paths = {name: inside(self.root, name) for name in names.split("\0") if name}
        return {n: decode(p.read_bytes()) if p.is_file() else None for n, p in paths.items()}

    def commit(
        self, texts: Texts, header: Header, name: str, author: str = "", date: str = ""
    ) -> None:
        """Commit files as a patch."""
        text = message(header, name)
        made = git.commit(self.root, texts, text, "HEAD", author=author, date=date)
        self.git("reset", "--quiet", "--hard", made)

    def commit_patch(self, texts: Texts, patch: Patch) -> None:
        """Commit files as a patch of the series, with the author that it names."""
        change = planning.read(patch)
        self.commit(texts, change.header, patch.name, change.author, change.date)

    def saved(self) -> Bench:
        """The same, kept for the next command."""
        memo.keep(_note(self.root), "bench", self)
        return self


def _note(root: Path) -> Path:
    return root / ".git" / "torchfork.json"


def message(header: Header, name: str) -> str:
    """The message of a patch's commit."""
    return f"{header.subject}\n\n{header.body()}{TRAILER}{name}\n"


def open_bench(root: Path) -> Bench:
    """The workbench in a directory. Raises StateError where there is none."""
    bench = memo.recall(_note(root), "bench", Bench)
    if bench is None:
        raise StateError(
            "there is no workbench here",
            where=str(root),
            next="scripts/torchfork patch edit --torch VERSION makes one",
        )
    return replace(bench, root=root)


def start(root: Path, series: Series, tree: Tree, version: str, mode: BuildMode) -> Bench:
    """Make a workbench of upstream's files. Raises StateError where one with work in it lies."""
    if _note(root).is_file():
        old = open_bench(root)
        if old.git("status", "--porcelain") or old.conflict:
            raise StateError(
                "the workbench has edits that are not in patches/",
                where=str(root),
                next=f"scripts/torchfork patch refresh, or delete it: rm -r {root}",
            )
    elif root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError("this is not an empty directory", where=str(root), next="name another one")
    patches = [patch for patch in series.patches if patch.covers(version, mode)]
    texts = {name: tree.read(name) for name in _worked_on(tree, patches)}
    names = tuple(patch.name for patch in patches)

    def fill(made: Path) -> None:
        git.create(made)
        # For people, whose own settings count when they work in it.
        for key in ("core.autocrlf", "core.safecrlf", "commit.gpgSign"):
            git.git(made, "config", key, "false")
        commit = git.commit(made, texts, f"torch {version}\n")
        git.git(made, "reset", "--quiet", "--hard", commit)
        Bench(made, series.folder, version, mode, commit, names).saved()

    files.build_directory(root, fill)
    return open_bench(root)


def _worked_on(tree: Tree, patches: Sequence[Patch]) -> Iterator[str]:
    """Upstream's text files that somebody may edit, and those that diffs touch."""
    changes = [planning.read(patch) for patch in patches if patch.is_diff]
    touched = {name for change in changes for name in change.touched("")}
    for name in tree.names():
        kind = PurePosixPath(name).suffix
        if name in touched or (kind in _SUFFIXES and not name.startswith(_LEFT_OUT)):
            yield name


def commit_pending(bench: Bench, series: Series, ancestors: Sequence[Tree]) -> Bench:
    """Commit each pending patch. Raises PatchConflictError with the conflict in the tree.

    What is in the tree after a conflict is taken as its resolution; StateError while conflict
    markers are left in it.
    """
    if bench.conflict:
        bench = _resolved(bench, series.get(bench.conflict))
    while bench.pending:
        patch = series.get(bench.pending[0])
        earlier = series.patches[: series.patches.index(patch)]
        tree = directory(bench.root)
        outcome = planning.judge(patch, tree, bench.build_mode, ancestors, earlier)
        if outcome.state is State.CONFLICTS:
            _stop(bench, outcome)
        landed = (patch.name,) if outcome.state is State.LANDED else ()
        if not landed:
            bench.commit_patch(outcome.texts, patch)
        bench = replace(bench, pending=bench.pending[1:], landed=(*bench.landed, *landed)).saved()
    return bench


def _stop(bench: Bench, outcome: Outcome) -> None:
    """Leave the conflict in the tree, to be resolved by hand."""
    marked = outcome.conflict.marked if outcome.conflict else {}
    if outcome.patch.is_diff:
        write(bench.root, marked)
        replace(bench, conflict=outcome.name).saved()
    what = "resolve the conflict markers" if marked else f"make the change of {outcome.name}"
    command = f"{what} in {bench.root}, then: scripts/torchfork patch refresh"
    raise outcome.error(bench.release, bench.build_mode, command)


def _resolved(bench: Bench, patch: Patch) -> Bench:
    texts = bench.uncommitted()
    left = [str(bench.root / name) for name, text in texts.items() if MARK in (text or "")]
    if left:
        raise StateError(
            f"the conflict of '{patch.name}' is not resolved",
            where="\n".join(left),
            why=f"lines that start with '{MARK.strip()}' are left",
            next="edit them, then: scripts/torchfork patch refresh",
        )
    bench.commit_patch(texts, patch)
    return replace(bench, conflict="", pending=bench.pending[1:]).saved()


@dataclass(frozen=True)
class Commit:
    """A commit of the workbench."""

    bench: Bench
    id: str
    name: str  # the patch's
    head: str  # as its patch file has it

    def patch_text(self, patch: Patch) -> str:
        """It as a patch file. Raises PatchError for what no patch file may be."""
        diff = git.export(self.bench.root, f"{self.id}^", self.id)
        if not diff:
            raise PatchError(f"the commit of '{self.name}' changes nothing", where=self.id)
        return git.parse_diff(self.head + diff, patch).text

    def contents(self, patch: Patch) -> Contents:
        """What must change below patches/ for a patch to be what this commit is."""
        change = planning.read(patch) if not patch.is_diff else None
        new: Contents = {}
        if isinstance(change, Folder):
            root, parent = self.bench.root, f"{self.id}^"
            names = git.changed_files(root, parent, self.id)
            before = git.texts_at(root, parent, names)
            new = change.rewritten(before, git.texts_at(root, self.id, names))
        else:
            new = {patch.path: encode(self.patch_text(patch))}
        old = {path: path.read_bytes() if path.is_file() else None for path in new}
        return {path: data for path, data in new.items() if data != old[path]}


def commits(bench: Bench) -> Iterator[Commit]:
    """The commits after upstream's, oldest first. PatchError for one that is no patch."""
    for commit in bench.git("rev-list", "--reverse", f"{bench.upstream}..HEAD").split():
        text = bench.git("show", "--no-patch", "--format=%an <%ae>%n%aD%n%B", commit)
        author, date, subject, *body = text.rstrip("\n").split("\n")
        names = [line.removeprefix(TRAILER) for line in body if line.startswith(TRAILER)]
        if not names:
            raise PatchError(
                "a commit of the workbench names no patch",
                where=f"{commit[:12]} {subject}",
                why=f"its message has no line '{TRAILER}NAME'",
                next="squash it into the commit it belongs to; for a new patch: git reset --soft "
                "HEAD~, then scripts/torchfork patch new NAME",
            )
        fields = "\n".join(line for line in body if not line.startswith(TRAILER))
        header = parse_header(subject, fields, f"commit {commit[:12]}")
        yield Commit(bench, commit, names[-1], git.mail_head(header, author, date))


def refresh(bench: Bench, series: Series, known: Mapping[str, Tree]) -> list[Path]:
    """Write what the commits say; the files below patches/ that changed.

    known: releases at hand, which a refreshed patch must not break, by their versions.
    Raises PatchError for a commit that is no patch and for a patch whose commit is gone;
    StateError for edits that are not committed, and for a patch that would not apply any more to a
    release of `known` that it applied to.
    """
    edited = bench.git("status", "--porcelain")
    if edited:
        raise StateError(
            "the workbench has edits that no commit has",
            where=str(bench.root),
            why=edited.rstrip(),
            next="git commit --amend (or --fixup and rebase) for a patch that is there, "
            "scripts/torchfork patch new NAME for a new one",
        )
    contents: dict[Path, bytes | None] = {}
    done = set(bench.landed)
    for commit in commits(bench):
        patch = _variant_of(series.get(commit.name), series, bench)
        done.add(patch.name)
        contents |= commit.contents(patch)
    for patch in series.patches:
        if patch.covers(bench.version, bench.build_mode) and patch.name not in done:
            raise PatchError(
                f"the commit of '{patch.name}' is gone",
                where=str(bench.root),
                why="a patch is not dropped by accident",
                next=f"to drop it delete {patch.path} and its line in {series.folder / SERIES}, "
                "else make the workbench anew with patch edit",
            )
    if contents:
        _require_others(series, contents, known, bench)
    _write(contents)
    return sorted(contents)


def _variant_of(patch: Patch, series: Series, bench: Bench) -> Patch:
    """The patch, or that of its variants which the series has for the workbench's release."""
    variants = [p for p in series.patches if p.concern == patch.concern]
    return next((p for p in variants if p.covers(bench.version, bench.build_mode)), patch)


def _require_others(
    series: Series, contents: Contents, known: Mapping[str, Tree], bench: Bench
) -> None:
    """Refuse a refresh that mends one release and breaks another."""
    with tempfile.TemporaryDirectory(prefix="torchfork-refresh-") as name:
        copy = Path(name) / series.folder.name
        shutil.copytree(series.folder, copy)
        _write({copy / p.relative_to(series.folder): d for p, d in contents.items()})
        refreshed = load(Path(name))
        for version, tree in known.items():
            before, after = (
                {o.name for o in planning.plan(s, tree, version, bench.build_mode).conflicts}
                for s in (series, refreshed)
            )
            for patch in map(series.get, sorted(after - before)):
                raise StateError(
                    f"refreshed on torch {bench.release}, '{patch.name}' does not apply to torch "
                    f"{version} any more",
                    where=str(patch.path),
                    why="one text cannot serve both releases",
                    next=f"copy it as a variant, {patch.concern}@{bench.release}, with a line of "
                    f"its own in {series.folder / SERIES} (>={bench.release}; <{bench.release} for "
                    "the old one), and run the same command again",
                )


def _write(contents: Contents) -> None:
    for path, data in contents.items():
        if data is None:
            path.unlink(missing_ok=True)
        else:
            files.write_bytes(path, data)


def add(bench: Bench, series: Series, name: str, header: Header, line: str) -> Path:
    """Make what is not committed in a workbench the last patch of the series.

    line: the patch's line for the series. Gives the new patch's file.
    """
    patch = parse_line(line, series.folder, len(series.patches) + 1)
    if any(other.name == patch.name for other in series.patches) or not patch.is_diff:
        raise PatchError(
            f"'{name}' cannot be the name of a new patch",
            where=patch.where(), why="it is taken, or it does not end with .patch",
            next="choose another one",
        )  # fmt: skip
    texts = bench.uncommitted()
    if not texts:
        raise StateError(
            "there is nothing to make a patch of", where=str(bench.root),
            next="edit upstream's files there first",
        )  # fmt: skip
    bench.commit(texts, header, patch.name)
    *_, commit = commits(bench)
    path = series.folder / SERIES
    old = patch.read_text(path) if path.exists() else ""
    old += "\n" if old and not old.endswith("\n") else ""
    _write({patch.path: encode(commit.patch_text(patch)), path: f"{old}{line}\n".encode()})
    return patch.path


def export(report: Report, tree: Path, branch: str) -> int:
    """Make a branch from HEAD of somebody's clone, a commit for each patch that applies; how many.

    report: of planning.plan on the tree, without conflicts. No file of the clone is touched, its
        settings count; authors are those of the patches, of folders the user.
    Raises UsageError for no git tree or a branch that is there, StateError for uncommitted edits.
    """

    commit = clone.commit_of(tree)
    edited = clone.changed_files(tree)
    if commit is None:
        raise UsageError("this is no git tree", where=str(tree), next="name a clone of PyTorch")
    if edited:
        raise StateError(
            "the tree has uncommitted edits",
            where=str(tree),
            why="\n".join(edited[:10]),
            next="commit them, or scripts/torchfork unapply",
        )
    if not clone.run(tree, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}").returncode:
        raise UsageError(
            f"the branch '{branch}' is there already",
            where=str(tree),
            next=f"name another one, or: git branch -D {branch}",
        )
    if clone.run(tree, "check-ref-format", "--branch", branch).returncode:
        raise UsageError(
            f"'{branch}' is no name for a branch", where=str(tree), next="name another one"
        )
    made = [outcome for outcome in report.outcomes if outcome.texts]
    for outcome in made:
        change = planning.read(outcome.patch)
        commit = git.commit(
            tree, outcome.texts, message(change.header, outcome.name), commit,
            author=change.author, date=change.date, own=False,
        )  # fmt: skip
    git.git(tree, "update-ref", f"refs/heads/{branch}", commit, "", own=False)
    return len(made)
