"""A source tree of upstream's laid out as its wheel would be, as far as the code generator goes.

A release that does not exist yet has no wheel; its YAML, generator and Python files say already
whether the additions merge, whether every hook finds its place and whether all files generate.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ..errors import DownloadError
from ..util import files, process
from . import tree as trees
from .base import Base, Interpreter
from .tree import PACKAGED

# Where a wheel has the rest of what the hooks read; PACKAGED has the generator's part.
HEADERS = ("torch/csrc/autograd/FunctionsManual.h", "torch/headeronly")
MOVED = {
    **{own: packaged for packaged, own in PACKAGED.items()},
    **{name: f"torch/include/{name}" for name in HEADERS},
}
# At the same place in both; torch/ is needed for the lists that upstream keeps by hand.
SAME = ("torchgen", "torch", "version.txt", "setup.py", "pyproject.toml")
# Of torch/ only what hooks and patches read; of the generator's own folders everything.
_KEPT = re.compile(r"\.(py|pyi|in|h)$")


def open_tree(tree: Path, interpreter: Interpreter, cache: Path) -> Base:
    """A directory with upstream's sources as a base for tiers (a) to (c)."""
    opened = trees.open_tree(tree)
    sources = _sources(tree)
    identity = files.fingerprint(sources, tree)
    root = cache / "trees" / identity
    if not root.is_dir():
        files.build_directory(root, lambda target: _lay_out(tree, sources, target))
    return Base(
        root=root,
        version=opened.version,
        git_version=opened.commit or "",
        cuda=None,
        dist_info="",
        wheel_tag="",
        wheel=None,
        identity=identity,
        interpreter=interpreter,
    )


def open_ref(ref: str, repository: str, interpreter: Interpreter, cache: Path) -> Base:
    """A branch, tag or commit of a git repository as a base for tiers (a) to (c)."""
    key = files.sha256_text(repository)[:16]
    tree = cache / "refs" / key
    with files.lock(cache / "locks" / f"ref-{key}.lock", f"fetching {ref}", lambda _: None, 3600.0):
        if not (tree / ".git").is_dir():
            tree.mkdir(parents=True, exist_ok=True)
            _git(tree, "init", "--quiet")
            _git(tree, "sparse-checkout", "set", "--no-cone", *_patterns())
        # Blobs come as they are needed: the history and the third of a GB that is not read stay.
        _git(tree, "fetch", "--quiet", "--depth=1", "--filter=blob:none", repository, ref)
        _git(tree, "config", "remote.origin.url", repository)
        _git(tree, "config", "remote.origin.promisor", "true")
        _git(tree, "config", "remote.origin.partialclonefilter", "blob:none")
        _git(tree, "checkout", "--quiet", "--force", "--detach", "FETCH_HEAD")
        return open_tree(tree, interpreter, cache)


def _patterns() -> list[str]:
    return [f"/{name}" for name in [*MOVED, *SAME]]


def _git(tree: Path, *arguments: str) -> str:
    outcome = process.run(
        ["git", "-C", tree, *arguments], env={"GIT_TERMINAL_PROMPT": "0"}, check=False
    )
    if outcome.returncode:
        raise DownloadError(
            "git could not fetch upstream's sources",
            where=outcome.command,
            why="\n".join(outcome.stderr.strip().splitlines()[-5:]),
            next="check the ref and the network, or give a checkout of your own with --onto DIR",
        )
    return outcome.stdout.strip()


def _sources(tree: Path) -> list[Path]:
    """Every file that the layout takes, whatever else lies about."""
    found: set[Path] = set()
    for name in [*MOVED, *SAME]:
        place = tree / name
        if place.is_dir():
            kept = (p for p in files.tree_files(place) if name != "torch" or _KEPT.search(p.name))
            found.update(kept)
        elif place.is_file():
            found.add(place)
    # What an earlier build copied into the generator's package is made anew from its sources.
    copied = tree / "torchgen" / "packaged"
    return sorted(path for path in found if not path.is_relative_to(copied))


def _lay_out(tree: Path, sources: list[Path], target: Path) -> None:
    for path in sources:
        place = target / _as_in_wheel(path.relative_to(tree).as_posix())
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _as_in_wheel(relative: str) -> str:
    for source, wheel in MOVED.items():
        if relative == source or relative.startswith(f"{source}/"):
            return wheel + relative.removeprefix(source)
    return relative
