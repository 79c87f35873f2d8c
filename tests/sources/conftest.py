"""Real sources: Debian's pieces of PyTorch 2.6.0, and a git repository that is made of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "invariants"))

from command import PROJECT, Command
from repository import SUBMODULES, VERSION, Upstream, git, git_init


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("sources")
    yield found
    shutil.rmtree(found)  # two trees, 1.5 GB


@pytest.fixture(scope="session")
def torchfork(home: Path) -> Command:
    """The command line with this repository's additions."""
    return Command(home, (), PROJECT)


@pytest.fixture(scope="session")
def debian(torchfork: Command) -> Path:
    """The tree as Debian's pieces make it, with nothing of ours in it."""
    answer = torchfork.run("build", "--from-source", "--source", "debian", "--until", "fetch")
    assert answer.code == 0, answer.err
    return Path(answer.out.strip())


@pytest.fixture(scope="session")
def upstream(debian: Path, home: Path) -> Upstream:
    root = home / "upstream"
    left_out = shutil.ignore_patterns(".torchfork")
    shutil.copytree(debian, root, symlinks=True, ignore=left_out)
    parts, listed = {}, []
    for path in SUBMODULES:
        part = home / "parts" / Path(path).name
        shutil.move(root / path, part)
        parts[path] = _commit_all(part)
        listed += [f'[submodule "{path}"]', f"\tpath = {path}", f"\turl = file://{part}"]
    (root / ".gitmodules").write_text("\n".join([*listed, ""]))
    git_init(root)
    git(root, "add", "--force", "--all")
    for path, commit in parts.items():
        git(root, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    git(root, "commit", "--quiet", "--message", "the release")
    commit = git(root, "rev-parse", "HEAD")
    (root / "later").write_text("")
    git(root, "add", "later")
    git(root, "commit", "--quiet", "--message", "after the release")
    return Upstream(root, commit, parts, _project(home / "project", commit))


def _commit_all(part: Path) -> str:
    git_init(part)
    git(part, "add", "--force", "--all")
    git(part, "commit", "--quiet", "--message", "the part")
    return git(part, "rev-parse", "HEAD")


def _project(root: Path, commit: str) -> Path:
    """This repository's tooling with the pin of 2.6.0 at another commit."""
    for folder in ("scripts", "ci"):
        shutil.copytree(
            PROJECT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    pins = root / "ci" / "releases.toml"
    text = pins.read_text(encoding="utf-8")
    head, release, tail = text.partition(f'version = "{VERSION}"\ncommit = "')
    assert release
    pins.write_text(f"{head}{release}{commit}{tail[len(commit) :]}", encoding="utf-8")
    return root
