"""A git repository that is made of PyTorch's sources, as the git host has them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

VERSION = "2.6.0"
# Directories of the tree that become submodules, as upstream has them.
SUBMODULES = ("third_party/fmt", "third_party/pocketfft", "third_party/protobuf")
GIT = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": "1",
    # git refuses submodules from local paths unless told otherwise; a mirror is not local.
    "GIT_CONFIG_KEY_0": "protocol.file.allow", "GIT_CONFIG_VALUE_0": "always",
}  # fmt: skip


def git(root: Path, *arguments: str) -> str:
    """git's answer in a repository."""
    command = ["git", "-C", str(root), *arguments]
    environment = os.environ | GIT
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def git_init(root: Path) -> None:
    """Make a repository that gives any commit, as the git host does."""
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(root, "config", "gc.auto", "0")  # in the background, it races with deletion


@dataclass(frozen=True)
class Upstream:
    """A repository with PyTorch 2.6.0 at its commit, and a project whose pins name that commit."""

    repository: Path
    commit: str
    parts: dict[str, str]  # submodule -> commit
    project: Path
