"""Patches in git's format, by git itself: read strictly, applied exactly, merged, exported."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

from ...errors import PatchError, ToolMissingError
from ...util import process
from .. import Texts, Tree, check_path, decode, directory, encode, similar_lines, write
from .series import Conflict, Header, Outcome, Patch, State, parse_header

NEEDED = (2, 39)  # the oldest that is tested; merge-tree --write-tree came with 2.38
ZERO = "0" * 40
FROM_LINE = f"From {ZERO} Mon Sep 17 00:00:00 2001"
# Nobody's: commits that torchfork itself makes, at a time that does not pass.
NAME, MAIL, DATE = "torchfork", "torchfork@example.invalid", "Thu, 1 Jan 1970 00:00:00 +0000"
_SETTINGS = (
    "core.autocrlf=false", "core.safecrlf=false", "core.quotepath=false", "core.symlinks=true",
    "core.hooksPath=/dev/null", "core.attributesFile=/dev/null", "commit.gpgSign=false",
    "commit.cleanup=verbatim", "gc.auto=0", "merge.conflictStyle=diff3", "merge.renames=true",
    "diff.indentHeuristic=true", "rerere.enabled=false", "init.defaultBranch=upstream",
)  # fmt: skip
_DIFF = (
    "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index", "--no-renames",
    "--diff-algorithm=myers", "--unified=3", "--inter-hunk-context=0", "--src-prefix=a/",
    "--dst-prefix=b/", "--binary", "--ignore-submodules=none",
)  # fmt: skip
_FILE = re.compile(
    r"diff --git a/(?P<path>.+) b/(?P=path)\n"
    r"(?:(?P<kind>new|deleted) file mode 100644\n)?"
    r"index (?P<before>[0-9a-f]{40})\.\.(?P<after>[0-9a-f]{40})(?: 100644)?\n"
    r"(?P<names>--- .+\n\+\+\+ .+\n)?"
)
_HEAD = re.compile(
    rf"{FROM_LINE}\n"
    r"From: (?P<author>[^<>\n]+ <[^<>\n]*>)\nDate: (?P<date>.+)\n"
    r"Subject: \[PATCH\] (?P<subject>.*)\n"
    r"\n(?P<body>(?:.*\n)*?)---\n\n"
)
_HUNK = re.compile(
    r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@.*\n((?:[ +\-\\].*\n)+)"
)
_LINE = re.compile(r"([ +-])(.*\n)(\\ No newline at end of file\n)?")
# Why a line before the hunks is refused.
_REFUSED = (
    (r"diff --git a/(.+) b/(?!\1$)|(dis)?similarity|rename|copy",
     "renames and copies are not carried: delete the file and add it anew"),
    (r".* file mode (?!100644$)|(old|new) mode",
     "symbolic links, submodules and modes other than 100644 are not carried"),
    (r"GIT binary|Binary files", "binary files are not carried"),
    (r"index (?![0-9a-f]{40}\.\.[0-9a-f]{40}( 100644)?$)",
     "object names are abbreviated, and abbreviations vary"),
    (r"(?!diff --git |new file |deleted file |index |--- |\+\+\+ )",
     "this line belongs to no diff that git writes"),
)  # fmt: skip
_SIDES = re.compile(
    r"^<{7} [^\n]*\n(?P<theirs>.*?)^\|{7} [^\n]*\n.*?^={7}\n(?P<ours>.*?)^>{7} ", re.M | re.S
)


@dataclass(frozen=True)
class Hunk:
    """Lines that stand together before and after the patch."""

    line: int  # in the patch file
    at: int  # its first line in the file that the patch was made from, counted from 1
    text: str  # with ' ', '-' and '+' before the lines
    before: str
    after: str
    anywhere: bool  # it does not say by lacking context that the file begins or ends with it


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file."""

    path: str
    before_id: str  # git's names of the contents, ZERO for no file
    after_id: str
    hunks: tuple[Hunk, ...]

    @property
    def adds(self) -> bool:
        """Whether there must be no such file yet."""
        return self.before_id == ZERO

    @property
    def deletes(self) -> bool:
        """Whether the file goes."""
        return self.after_id == ZERO


@dataclass(frozen=True)
class Diff:
    """A git-format patch: author, header and files."""

    patch: Patch
    text: str
    author: str  # 'Name <mail>'
    date: str
    header: Header
    files: tuple[FileDiff, ...]

    def touched(self, mode: str) -> list[str]:
        """The files that it adds or changes, in whatever build mode."""
        return [file.path for file in self.files]

    @property
    def new_files(self) -> list[str]:
        """The files that it adds."""
        return [file.path for file in self.files if file.adds]

    @property
    def changes(self) -> str:
        """The patch without its header."""
        return self.text.partition("\ndiff --git ")[2]

    @property
    def mail_head(self) -> str:
        """What stands before the first file in the canonical form."""
        return mail_head(self.header, self.author, self.date)

    def judge(self, tree: Tree, ancestors: Iterable[Tree]) -> Outcome:
        """How it stands to a tree: applied by git exactly, or else merged, or neither."""
        done, header = "upstream has all of its changes", self.header
        # In reverse first: one that upstream has may still find a place where it would go twice.
        if _is_applied(tree, self):
            return Outcome(self.patch, header, State.LANDED, {}, done)
        texts = _apply(tree, self)
        if not isinstance(texts, Conflict):
            return Outcome(self.patch, header, State.APPLIES, texts)
        merged = _merge(tree, self, ancestors)
        conflict = texts if merged is None else merged
        if isinstance(conflict, Conflict):
            return Outcome(self.patch, header, State.CONFLICTS, {}, conflict.why, conflict)
        if not conflict:
            return Outcome(self.patch, header, State.LANDED, {}, done)
        renamed = sorted(set(conflict) - set(self.touched("")))
        note = f"{texts.file} has changed around it"
        if renamed:
            note = f"upstream has renamed a file of it to {', '.join(renamed)}"
        return Outcome(self.patch, header, State.MERGED, conflict, note)


def read_diff(patch: Patch) -> Diff:
    """Read a patch file. Raises PatchError, with its line, for anything but text edits."""
    return parse_diff(patch.read_text(patch.path), patch)


def parse_diff(text: str, patch: Patch) -> Diff:
    """Read the text of a patch. Raises PatchError, with its line.

    Every line must have its place: git skips those that have none, or takes them for a diff.
    """
    path = patch.path
    if not text.endswith("\n"):
        raise _malformed(path, text.count("\n") + 1, "the last line has no newline")
    # No line of a hunk starts with a letter, so this finds the files and nothing else.
    head, *chunks = re.split(r"^(?=diff --git )", text, flags=re.M)
    said = _HEAD.fullmatch(head)
    if "\r" in head:
        raise _malformed(path, 1, "its lines end with CR LF")
    if said is None or not _is_date(said["date"]):
        raise _malformed(
            path, 1,
            f"it must begin with '{FROM_LINE}', 'From: Name <mail>', 'Date: ' as in a mail, "
            "'Subject: [PATCH] ', the fields, and '---' between the empty lines",
        )  # fmt: skip
    files = []
    number = first = head.count("\n") + 1
    for chunk in chunks:
        files.append(_file(chunk, number, path))
        number += chunk.count("\n")
    names = [file.path for file in files]
    if not files:
        raise _malformed(path, number, "it changes nothing")
    if names != sorted(set(names)):
        raise _malformed(path, first, "its files are not in order, or one stands twice")
    header = parse_header(said["subject"], said["body"].strip("\n"), str(path))
    return Diff(patch, text, said["author"], said["date"], header, tuple(files))


def _is_date(text: str) -> bool:
    import email.utils  # slow to import, and only a diff needs it

    try:
        return email.utils.parsedate_to_datetime(text).year >= 1970
    except (ValueError, TypeError, OverflowError):
        return False


def _file(chunk: str, number: int, path: Path) -> FileDiff:
    """The diff of one file, which begins in line `number`."""
    head, *chunks = re.split(r"^(?=@@)", chunk, flags=re.M)
    for at, line in enumerate(head.split("\n")[:-1], number):
        why = next((why for pattern, why in _REFUSED if re.match(pattern, line)), "")
        if why:
            raise _malformed(path, at, why)
    found = _FILE.fullmatch(head)
    if found is None:
        raise _malformed(path, number, "its first lines are not as git writes them")
    name = check_path(found["path"], f"{path}:{number}")
    number += head.count("\n")
    old = "/dev/null" if found["kind"] == "new" else f"a/{name}"
    new = "/dev/null" if found["kind"] == "deleted" else f"b/{name}"
    # git apply goes by these names, so they must be those of the first line.
    if found["names"] != (f"--- {old}\n+++ {new}\n" if chunks else None):
        raise _malformed(path, number, f"'--- {old}' and '+++ {new}' are wanted before hunks")
    hunks = []
    for text in chunks:
        hunks.append(_hunk(text, number, path))
        number += text.count("\n")
    if found["kind"] is None and not hunks:
        raise _malformed(path, number - 1, "a file without any change")
    if [found["before"] == ZERO, found["after"] == ZERO] != [old[0] == "/", new[0] == "/"]:
        raise _malformed(path, number - 1, "the object names say otherwise what happens to it")
    return FileDiff(name, found["before"], found["after"], tuple(hunks))


def _hunk(text: str, number: int, path: Path) -> Hunk:
    found = _HUNK.fullmatch(text)
    lines = _LINE.findall(found[4]) if found else []
    if found is None or "".join(map("".join, lines)) != found[4]:
        raise _malformed(path, number, "no hunk as git writes it, or lines that belong to none")
    sides = [
        [line[: -1 if cut else None] for mark, line, cut in lines if mark != other]
        for other in "+-"
    ]
    if [len(side) for side in sides] != [int(found[2] or 1), int(found[3] or 1)]:
        raise _malformed(path, number, "the hunk has more or fewer lines than it says")
    before, after = ("".join(side) for side in sides)
    if before == after:
        raise _malformed(path, number, "a hunk without any change")
    leading = next(n for n, (mark, *_) in enumerate(lines) if mark != " ")
    anywhere = (int(found[1]) > 1 or leading >= 3) and lines[-1][0] == " " and before[-1:] == "\n"
    return Hunk(number, int(found[1]), found[4], before, after, anywhere)


def _malformed(path: Path, line: int, why: str) -> PatchError:
    return PatchError(
        "a patch is not as torchfork exports it",
        where=f"{path}:{line}",
        why=why,
        next="make it anew: scripts/torchfork patch edit, git am FILE there, git reset HEAD~, "
        "and scripts/torchfork patch new",
    )


def _is_applied(tree: Tree, diff: Diff) -> bool:
    """Whether the tree has every change of the patch already: it could be taken out exactly."""
    texts = {file.path: tree.read(file.path) for file in diff.files}
    for file in diff.files:
        text = texts[file.path]
        if (text is None) != file.deletes:
            return False
        if text is not None and any(hunk.after not in text for hunk in file.hunks):
            return False  # without starting git
        if _doubled(file, text, reverse=True):
            return False
    return not _git_apply(texts, diff, "--reverse")[0]


def _apply(tree: Tree, diff: Diff) -> Texts | Conflict:
    """The texts after the patch, or the first place that does not fit.

    Exactly: no fuzz, whitespace counts, and lines that stand there twice are not guessed at.
    """
    texts = {file.path: tree.read(file.path) for file in diff.files}
    for file in diff.files:
        text = texts[file.path]
        if file.adds and text is not None:
            return _conflict(tree, diff, file, None, "the file that it adds is there already")
        if not file.adds and text is None:
            return _conflict(tree, diff, file, None, "there is no such file")
        doubled = _doubled(file, text)
        if doubled:
            hunk, times = doubled
            why = f"the lines around its change are {times} times, so nobody can say where"
            return _conflict(tree, diff, file, hunk, why)
    said, changed = _git_apply(texts, diff)
    if not said:
        return changed
    found = re.search(r"patch failed: (.+):(\d+)\n", said)
    if found is None:  # a file that is deleted has other lines too, for example
        return _conflict(tree, diff, diff.files[0], None, said.strip())
    file = next(file for file in diff.files if file.path == found[1])
    failed = next((hunk for hunk in file.hunks if hunk.at == int(found[2])), None)
    return _conflict(tree, diff, file, failed, "the lines around its change are not there")


def _doubled(file: FileDiff, text: str | None, *, reverse: bool = False) -> tuple[Hunk, int] | None:
    """The first hunk whose lines stand more than once after those of the hunks before it."""
    if blob_id(text) == (file.after_id if reverse else file.before_id):
        return None  # the very file that the patch was made from: line numbers tell
    done = 0
    for hunk in file.hunks:
        lines = re.escape(hunk.after if reverse else hunk.before)
        places = [m.end() for m in re.finditer(f"^(?={lines})", (text or "")[done:], re.M)]
        if len(places) > 1 and hunk.anywhere:
            return hunk, len(places)
        done += places[0] + len(hunk.after if reverse else hunk.before) if places else 0
    return None


def _git_apply(texts: Texts, diff: Diff, *options: str) -> tuple[str, Texts]:
    """What git objects to, '' for nothing, and the texts that it makes."""
    with tempfile.TemporaryDirectory(prefix="torchfork-apply-") as name:
        tree, patch = Path(name, "tree"), Path(name, "patch")
        tree.mkdir()
        write(tree, texts)
        patch.write_text(diff.text, encoding="utf-8", newline="")
        done = git(tree, "apply", "--whitespace=nowarn", *options, str(patch), check=False)
        changed = {path: directory(tree).read(path) for path in texts}
        return (done.stderr or "git apply failed") if done.returncode else "", changed


def _conflict(tree: Tree, diff: Diff, file: FileDiff, hunk: Hunk | None, why: str) -> Conflict:
    """A conflict described from the patch alone, without an ancestor."""
    text = tree.read(file.path)
    shown = hunk or next(iter(file.hunks), None)
    where = f"{diff.patch.path}:{shown.line if shown else 1}"
    ours = shown.text if shown else ""
    if shown is None or file.adds:
        theirs = ""
    elif text is None:
        moved = tree.containing(shown.before, PurePosixPath(file.path).suffix)
        theirs = "".join(f"its lines are in {name}\n" for name in moved)
    else:
        theirs = similar_lines(text, shown.before.split("\n"), shown.before.count("\n"))
    return Conflict(where, file.path, why, ours, theirs)


def _merge(tree: Tree, diff: Diff, ancestors: Iterable[Tree]) -> Texts | Conflict | None:
    """Merge a patch into a tree; None where no ancestor has the files that it was made from."""
    files = diff.files
    origin = next(
        (
            tree
            for tree in ancestors
            if all(blob_id(tree.read(f.path)) == f.before_id for f in files)
        ),
        None,
    )
    patched = _apply(origin, diff) if origin else None
    if origin is None or patched is None or isinstance(patched, Conflict):
        return None
    before = {file.path: origin.read(file.path) for file in diff.files}
    now = {name: tree.read(name) for name in before}
    gone = [name for name, text in now.items() if text is None and before[name] is not None]
    now.update(_candidates(tree, origin, gone))
    with tempfile.TemporaryDirectory(prefix="torchfork-merge-") as name:
        repository = create(Path(name))
        start = commit(repository, before, "origin")
        ours = commit(repository, patched, "the patch", start)
        theirs = commit(repository, now, "upstream", start)
        command = ("merge-tree", "--write-tree", "-z", "--name-only", theirs, ours)
        done = git(repository, *command, check=False)
        merged, *names = done.stdout.split("\0")
        texts = texts_at(repository, merged, changed_files(repository, theirs, merged))
    if not done.returncode:
        return texts
    sides = {theirs: "upstream", ours: f"the patch {diff.patch.name}"}  # for conflict markers
    for commit_id, side in sides.items():
        texts = {name: text and text.replace(commit_id, side) for name, text in texts.items()}
    return _merge_conflict(diff, names[0], texts)


def _candidates(tree: Tree, origin: Tree, gone: Sequence[str]) -> Texts:
    """The files that upstream has gained, among which git looks for those that are gone."""
    suffixes = {PurePosixPath(name).suffix for name in gone}
    fresh = set(tree.names()) - set(origin.names()) if gone else ()
    return {name: tree.read(name) for name in fresh if PurePosixPath(name).suffix in suffixes}


def _merge_conflict(diff: Diff, name: str, texts: Texts) -> Conflict:
    """What git could not merge, by the first file and place of it."""
    sides = _SIDES.search(texts.get(name) or "")
    hunks = [hunk for file in diff.files for hunk in file.hunks if file.path == name]
    hunks = hunks or [hunk for file in diff.files for hunk in file.hunks]  # it is renamed
    wanted = set(sides["ours"].split("\n") if sides else ())
    best = max(hunks, key=lambda hunk: len(wanted & set(hunk.after.split("\n"))), default=None)
    ours = sides["ours"] if sides else best.text if best else ""
    theirs = sides["theirs"] if sides else ""  # without sides upstream has deleted the file
    where = f"{diff.patch.path}:{best.line if best else 1}"
    return Conflict(where, name, "upstream has changed the same lines", ours, theirs, texts)


def blob_id(text: str | None) -> str:
    """git's name of a file's contents, ZERO for no file."""
    if text is None:
        return ZERO
    data = encode(text)
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@cache
def require_git() -> None:
    """Raise ToolMissingError for no git, or one that lacks what this module uses."""
    try:
        said = process.run(["git", "version"]).stdout.strip()
    except ToolMissingError as error:
        raise ToolMissingError(
            "no git", where="PATH", why="it applies and merges patches in its format",
            next="apt-get install git",
        ) from error  # fmt: skip
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < NEEDED:
        raise ToolMissingError(
            f"git is too old: {said}",
            where="PATH",
            why="patches are merged by git merge-tree --write-tree",
            next=f"install git {'.'.join(map(str, NEEDED))} or newer",
        )


def git(
    repository: Path, *arguments: str, check: bool = True, env: Mapping[str, str] | None = None,
    input_text: str | None = None, own: bool = True,
) -> process.Outcome:  # fmt: skip
    """Run git in a repository, or, where there is none, on the files of a directory.

    own: a repository of ours, for which neither the user's nor the system's settings count.
    Raises ProcessError on failure, ToolMissingError for no git or one that is too old.
    """
    require_git()
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    isolated = {
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": "0", "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
        "GIT_DIR": str(repository / ".git"), "GIT_WORK_TREE": str(repository),
        "GIT_INDEX_FILE": str(repository / ".git" / "index"),
        **{f"GIT_{who}_{key}": value
           for who in ("AUTHOR", "COMMITTER")
           for key, value in (("NAME", NAME), ("EMAIL", MAIL), ("DATE", DATE))},
    }  # fmt: skip
    return process.run(
        ["git", *(settings if own else ()), *arguments], cwd=repository, check=check,
        env={"GIT_TERMINAL_PROMPT": "0", **(isolated if own else {}), **(env or {})},
        input_text=input_text,
    )  # fmt: skip


def create(repository: Path) -> Path:
    """Make an empty repository."""
    repository.mkdir(parents=True, exist_ok=True)
    git(repository, "init", "--quiet")
    return repository


def commit(
    repository: Path, texts: Texts, message: str, parent: str = "", *,
    author: str = "", date: str = "", own: bool = True,
) -> str:  # fmt: skip
    """A commit on `parent` in which files have these texts, no branch and no file touched.

    author: 'Name <mail>'; '' for who runs it.
    """
    with tempfile.TemporaryDirectory(prefix="torchfork-commit-") as name:
        staged = partial(git, repository, env={"GIT_INDEX_FILE": str(Path(name, "index"))}, own=own)
        if parent:
            staged("read-tree", parent)
        kept = {path: text for path, text in texts.items() if text is not None}
        blobs = [Path(name, f"blob{number}") for number in range(len(kept))]
        for blob, text in zip(blobs, kept.values(), strict=True):
            blob.write_bytes(encode(text))
        paths = "".join(f"{blob}\n" for blob in blobs)
        hashing = ("hash-object", "-w", "--no-filters", "--stdin-paths")
        ids = staged(*hashing, input_text=paths).stdout.split()
        lines = [f"100644 {i}\t{path}\n" for i, path in zip(ids, kept, strict=True)]
        lines += [f"0 {ZERO}\t{path}\n" for path, text in texts.items() if text is None]
        staged("update-index", "--index-info", input_text="".join(lines))
        tree = staged("write-tree").stdout.strip()
    parents = ["-p", parent] if parent else []
    user, _, mail = author.rstrip(">").rpartition(" <")
    env = {"GIT_AUTHOR_NAME": user, "GIT_AUTHOR_EMAIL": mail, "GIT_AUTHOR_DATE": date}
    arguments = ["commit-tree", tree, *parents, "-m", message]
    return git(repository, *arguments, env=env if author else None, own=own).stdout.strip()


def changed_files(repository: Path, before: str, after: str) -> list[str]:
    """The files in which two commits, or trees, differ."""
    arguments = ("diff-tree", "-r", "--name-only", "--no-renames", "-z", before, after)
    return [name for name in git(repository, *arguments).stdout.split("\0") if name]


def texts_at(repository: Path, commit: str, names: Sequence[str]) -> Texts:
    """Files of a commit, or of a tree; None for one that it lacks."""
    with tempfile.TemporaryDirectory(prefix="torchfork-files-") as name:
        index = {"GIT_INDEX_FILE": str(Path(name, "index"))}
        git(repository, "read-tree", commit, env=index)
        git(
            repository, "checkout-index", "--quiet", f"--prefix={name}/tree/", "-z", "--stdin",
            env=index, input_text="\0".join(names), check=False,
        )  # fmt: skip
        return {path: directory(Path(name, "tree")).read(path) for path in names}


def export(repository: Path, before: str, after: str) -> str:
    """The diff between two commits: the same bytes on every machine and with every git."""
    # Through a file: what a program prints is read as text, which would change line ends.
    out = repository / ".git" / "torchfork.diff"
    git(repository, *_DIFF, f"--output={out}", before, after)
    return decode(out.read_bytes())


def mail_head(header: Header, author: str, date: str) -> str:
    """What stands before the first diff. git format-patch would fold and encode long subjects."""
    first = (FROM_LINE, f"From: {author}", f"Date: {date}", f"Subject: [PATCH] {header.subject}")
    return "\n".join(first) + f"\n\n{header.body()}---\n\n"
