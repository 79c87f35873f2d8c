"""Writes a commit as a patch file: the same bytes on every machine and with every git."""

from __future__ import annotations

from pathlib import Path

from . import scratch
from .diff import FROM_LINE
from .header import Header
from .tree import decode

_DIFF = (
    "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index", "--no-renames",
    "--diff-algorithm=myers", "--unified=3", "--inter-hunk-context=0", "--src-prefix=a/",
    "--dst-prefix=b/", "--binary", "--ignore-submodules=none",
)  # fmt: skip


def render(repository: Path, before: str, after: str, said: Header, author: str, date: str) -> str:
    """The patch between two commits with a header; '' where they are equal.

    author: 'Name <mail>'. date: as an e-mail has it.
    """
    # Through a file: what a program prints is read as text, which would change line ends.
    out = repository / ".git" / "torchfork.diff"
    scratch.git(repository, *_DIFF, f"--output={out}", before, after)
    body = decode(out.read_bytes())
    return head(said, author, date) + body if body else ""


def head(said: Header, author: str, date: str) -> str:
    """What stands before the first diff of a patch."""
    first = [FROM_LINE, f"From: {author}", f"Date: {date}", f"Subject: [PATCH] {said.subject}", ""]
    return "\n".join(first) + "\n" + said.body() + "---\n\n"
