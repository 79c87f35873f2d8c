"""git in a scratch repository, the same whatever the user's settings are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...util.process import Outcome, run
from . import paths
from .tree import Texts, decode, encode

# Nobody's: commits that torchfork itself makes, at a time that does not pass.
NAME, MAIL, DATE = "torchfork", "torchfork@example.invalid", "Thu, 1 Jan 1970 00:00:00 +0000"
_SETTINGS = (
    "core.autocrlf=false", "core.safecrlf=false", "core.quotepath=false", "core.symlinks=true",
    "core.hooksPath=/dev/null", "core.attributesFile=/dev/null", "commit.gpgSign=false",
    "commit.cleanup=verbatim", "gc.auto=0", "merge.conflictStyle=diff3", "merge.renames=true",
    "diff.indentHeuristic=true", "rerere.enabled=false", "init.defaultBranch=upstream",
)  # fmt: skip


def git(
    repository: Path, *arguments: str, check: bool = True, env: Mapping[str, str] | None = None
) -> Outcome:
    """Run git in a repository of ours. Raises ProcessError on failure, ToolMissingError for no git.

    Neither the user's nor the system's settings count, nor a repository above.
    """
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    own = {
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
        "GIT_CEILING_DIRECTORIES": str(repository.parent), "LC_ALL": "C",
        "GIT_DIR": str(repository / ".git"), "GIT_WORK_TREE": str(repository),
        "GIT_INDEX_FILE": str(repository / ".git" / "index"),
        **identity(NAME, MAIL, DATE), **(env or {}),
    }  # fmt: skip
    return run(["git", *settings, *arguments], cwd=repository, env=own, check=check)


def identity(name: str, mail: str, date: str) -> dict[str, str]:
    """The environment that gives a commit its author and committer."""
    return {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", name), ("EMAIL", mail), ("DATE", date))
    }


def create(repository: Path) -> None:
    """Make an empty repository."""
    repository.mkdir(parents=True, exist_ok=True)
    git(repository, "init", "--quiet")
    # For people, whose own settings count when they work in it.
    for key in ("core.autocrlf", "core.safecrlf", "commit.gpgSign"):
        git(repository, "config", key, "false")


def put(repository: Path, texts: Texts) -> None:
    """Write files, or take them away, in the working tree."""
    for name, text in texts.items():
        path = paths.inside(repository, name)
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(text))


def get(repository: Path, name: str) -> str | None:
    """A file of the working tree."""
    path = paths.inside(repository, name)
    return decode(path.read_bytes()) if path.is_file() else None


def commit(repository: Path, message: str, *, env: Mapping[str, str] | None = None) -> str:
    """Commit everything that is in the working tree; give the commit's name."""
    git(repository, "add", "--all", "--force", ".")
    git(repository, "commit", "--quiet", "--allow-empty", "--no-verify", "-m", message, env=env)
    return git(repository, "rev-parse", "HEAD").stdout.strip()
