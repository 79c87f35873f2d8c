"""Small upstream trees, and patches folders written by a test."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sample_files import lay, snapshot

from torchfork.edits.patches import Series, Tree, git, load
from torchfork.edits.patches.series import Header

ABOUT = Header("Do a thing", "people need it", "upstream does it", "none")
FUNCTIONS = """\
import math


def area(r):
    \"\"\"Of a circle.\"\"\"
    return math.pi * r * r


def around(r):
    return 2 * math.pi * r


NAMES = [
    "area",
    "around",
]
"""
UPSTREAM = {
    "torch/shapes.py": FUNCTIONS,
    "torch/other.py": "first = 1\nsecond = 2\n",
    "torchgen/gen.py": "x = 1\n",
}


def tree(texts: dict[str, str] | None = None, **changed: str | None) -> Tree:
    """A tree in memory: the sample upstream, or the given texts."""
    found: dict[str, str] = dict(UPSTREAM if texts is None else texts)
    return Tree(found.get, lambda: list(found))


def diff(before: dict[str, str], after: dict[str, str | None], about: Header = ABOUT) -> str:
    """The patch that makes `after` of `before`, as torchfork exports it."""
    with tempfile.TemporaryDirectory() as name:
        repository = git.create(Path(name))
        start = git.commit(repository, before, "before")
        end = git.commit(repository, after, "after", start)
        return git.mail_head(about, "A <a@b.c>", git.DATE) + git.export(repository, start, end)


def write(root: Path, series: str, files: dict[str, str]) -> Series:
    lay(root / "patches", {"series": series, **files})
    return load(root)


def about_toml(hooks: str = "") -> str:
    """A patch.toml with every field."""
    fields = f'subject = "{ABOUT.subject}"\nwhy = "{ABOUT.why}"\nuntil = "{ABOUT.until}"\n'
    return f'{fields}upstream = "none"\n{hooks}'


def hook(file: str, place: str, lines: str, lane: str = "both") -> str:
    """A [[hook]] table; place: 'after = "..."'."""
    return f"\n[[hook]]\nfile = \"{file}\"\n{place}\nlane = \"{lane}\"\nlines = '''\n{lines}'''\n"


def content(root: Path) -> dict[str, str]:
    """The files of a directory but git's own."""
    return {name: data.decode() for name, data in snapshot(root).items()}
