"""`ci/job find`: a new release comes as one commit on a branch, and as a pull request."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from sample_files import commit_all, lay, program

PROJECT = Path(__file__).resolve().parents[3]

# What the job calls, played: finding pins what FOUND names, refreshing changes a patch, carrying
# leaves a report and ends with CARRIED.
TORCHFORK = """
echo "torchfork $*" >>"$CALLS"
case "$1 $2" in
  "pin --find")
    [ -z "$FIND_FAILS" ] || exit 21
    for v in $FOUND; do echo "$v"; echo "[\\"$v\\"]" >>ci/releases.toml; done ;;
  "patch edit") [ -z "$CONFLICT" ] || exit 19 ;;
  "patch refresh") echo refreshed >>patches/series ;;
esac
"""
REBASE = """
echo "rebase $*" >>"$CALLS"
mkdir -p .torchfork/report
echo "| torch | (d) |" >.torchfork/report/matrix.md
exit "${CARRIED:-0}"
"""
GH = 'echo "gh $*" >>"$CALLS"'


@dataclass
class Repository:
    """A clone with an origin that a branch can be pushed to."""

    root: Path
    origin: Path
    calls: Path
    programs: Path

    def git(self, *arguments: str, at: Path | None = None) -> str:
        command = ["git", "-C", str(at or self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def find(self, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        variables = {"CALLS": str(self.calls), "PATH": path, "FOUND": "9.2.0", **environment}
        return subprocess.run(
            [self.root / "ci" / "job", "find"],
            env=os.environ | variables, capture_output=True, text=True,
        )  # fmt: skip

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.is_file() else []

    def branches(self) -> list[str]:
        return self.git("branch", "--format=%(refname:short)", at=self.origin).split()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(
        tmp_path / "clone", tmp_path / "origin.git", tmp_path / "calls", tmp_path / "bin"
    )
    program(made.root / "scripts" / "torchfork", TORCHFORK)
    program(made.root / "scripts" / "rebase_torch.sh", REBASE)
    # What a machine of CI has, so that the job does not go and install it.
    for name in ("gh", "g++", "ccache"):
        program(made.programs / name, GH if name == "gh" else "")
    (made.root / "ci").mkdir()
    shutil.copy(PROJECT / "ci" / "job", made.root / "ci" / "job")
    empty = {"ci/releases.toml": "", "patches/series": "", ".gitignore": "/.torchfork/\n"}
    commit_all(lay(made.root, empty), "first")
    subprocess.run(["git", "init", "--quiet", "--bare", made.origin], check=True)
    made.git("remote", "add", "origin", str(made.origin))
    made.git("push", "--quiet", "origin", "main")
    return made


def test_a_found_release_is_pinned_carried_pushed_and_proposed(repository: Repository) -> None:
    done = repository.find()
    assert done.returncode == 0, done.stderr
    assert repository.branches() == ["main", "torch-9.2.0"]
    changed = repository.git("diff", "--name-only", "main", "torch-9.2.0", at=repository.origin)
    assert changed.split() == ["ci/releases.toml", "patches/series"]
    assert "rebase --report .torchfork/report --onto 9.2.0" in repository.called()
    proposed = repository.called()[-1]
    assert proposed.startswith("gh pr create --head torch-9.2.0")
    assert proposed.endswith("--body-file .torchfork/report/matrix.md")


def test_two_releases_come_as_one_pull_request(repository: Repository) -> None:
    assert repository.find(FOUND="9.1.1 9.2.0").returncode == 0
    assert repository.branches() == ["main", "torch-9.1.1-9.2.0"]
    assert any(call.endswith("--onto 9.1.1 --onto 9.2.0") for call in repository.called())


def test_what_is_proposed_already_is_left_alone(repository: Repository) -> None:
    assert repository.find().returncode == 0
    repository.git("switch", "--quiet", "main")
    repository.calls.unlink()
    done = repository.find()
    assert done.returncode == 0 and "torch-9.2.0" in done.stdout
    assert repository.called() == ["torchfork pin --find", "gh auth setup-git"]


def test_what_needs_a_person_is_proposed_with_the_report(repository: Repository) -> None:
    done = repository.find(CONFLICT="1", CARRIED="41")
    assert done.returncode == 0, done.stderr
    changed = repository.git("diff", "--name-only", "main", "torch-9.2.0", at=repository.origin)
    assert changed.split() == ["ci/releases.toml"]
    assert repository.called()[-1].startswith("gh pr create")


def test_nothing_new_is_no_pull_request(repository: Repository) -> None:
    done = repository.find(FOUND="")
    assert done.returncode == 0 and "every release of the index is pinned" in done.stdout
    assert repository.branches() == ["main"]
    assert repository.called() == ["torchfork pin --find"]


def test_an_index_out_of_reach_turns_the_job_red(repository: Repository) -> None:
    assert repository.find(FIND_FAILS="1").returncode == 21
    assert repository.branches() == ["main"]
