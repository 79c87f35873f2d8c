"""torchfork patch on the command line: what it prints, its exit codes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_files import commit_all, lay
from sample_files import git as run_git
from sample_patches import FUNCTIONS, UPSTREAM, about_toml, content, diff, hook, write

from torchfork import cli

SHAPES = "torch/shapes.py"
PATCHED = FUNCTIONS.replace("2 * math.pi * r", "math.tau * r")
VERSION = "__version__ = '2.13.0+cpu'\ngit_version = 'c0ffee'\n"


@pytest.fixture
def additions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHFORK_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "mine"
    write(
        root,
        "tau.patch  *  both  # shorter\nmore  >=2.6  both  # needed\n",
        {
            "tau.patch": diff({SHAPES: FUNCTIONS}, {SHAPES: PATCHED}),
            "more/patch.toml": about_toml(
                hook("torch/other.py", 'after = "first = 1"', "middle = 1.5\n")
            ).replace("Do a thing", "Do more"),
            "more/torch/new.py": "q = 1\n",
        },
    )
    return root


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return lay(tmp_path / "site", {**UPSTREAM, "torch/version.py": VERSION})


def patch(*arguments: object) -> int:
    return cli.main(["patch", *map(str, arguments)])


def test_list_names_patches_and_their_states(
    additions: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert patch("list", "--additions", additions) == 0
    said = capsys.readouterr()
    assert "tau.patch" in said.out and ">=2.6" in said.out and "shorter" in said.out
    assert "0 of them variants" in said.err
    assert patch("list", "--additions", additions, "--torch", site) == 0
    assert capsys.readouterr().out.count("applies") == 2
    (site / SHAPES).write_text(PATCHED)
    (site / "torch/other.py").write_text("first = 1\nfirst = 1\n")
    assert patch("list", "--additions", additions, "--torch", site) == 19
    said = capsys.readouterr()
    assert "landed upstream" in said.out and "conflicts" in said.out
    assert "drop it" in said.err and "patch.toml:6" in said.err and "2 lines" in said.err


def test_lint_reports_every_fault(additions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert patch("lint", "--additions", additions) == 0
    for name in ("orphan.patch", "other.patch"):
        (additions / "patches" / name).touch()
    assert patch("lint", "--additions", additions) == 18
    said = capsys.readouterr().err
    assert "orphan.patch" in said and "other.patch" in said and "Traceback" not in said


def test_apply_writes_all_or_nothing_and_check_nothing(
    additions: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(site)
    assert patch("apply", "--additions", additions, "--check", site) == 0
    assert content(site) == before
    assert capsys.readouterr().out.split() == ["torch/new.py", "torch/other.py", SHAPES]
    (site / "torch/other.py").write_text("nothing\n")
    broken = content(site)
    assert patch("apply", "--additions", additions, site) == 19
    assert content(site) == broken
    (site / "torch/other.py").write_text(UPSTREAM["torch/other.py"])
    assert patch("apply", "--additions", additions, site) == 0
    assert (site / SHAPES).read_text() == PATCHED and (site / "torch/new.py").is_file()
    (site / "torch/version.py").unlink()
    capsys.readouterr()
    assert patch("apply", "--additions", additions, site) == 2
    assert "no PyTorch" in capsys.readouterr().err


def test_edit_refresh_and_new_go_round(
    additions: Path, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / "bench"
    edit = ("edit", "--additions", additions, "--torch", site, "--bench", bench)
    before = content(additions)
    assert patch(*edit) == 0 and capsys.readouterr().out.strip() == str(bench)
    assert patch("refresh", "--bench", bench) == 0
    assert "patches/ is what the commits say" in capsys.readouterr().err
    assert content(additions) == before

    (bench / "torchgen/gen.py").write_text("x = 2\n")
    assert patch("refresh", "--bench", bench) == 32
    assert "patch new" in capsys.readouterr().err
    new = ("new", "gen", "--subject", "Set x", "--until", "it is 2", "--bench", bench)
    assert patch(*new, "--why", "it must be 2", "--versions", ">=2.6", "--lane", "graft") == 0
    assert (additions / "patches/gen.patch").is_file()
    assert "gen.patch  >=2.6  graft  # Set x" in (additions / "patches/series").read_text()
    assert patch("lint", "--additions", additions) == 0
    assert patch("refresh", "--bench", bench) == 0

    (site / SHAPES).write_text(FUNCTIONS.replace("2 * math.pi", "2.0 * math.pi"))
    assert patch(*edit) == 19
    said = capsys.readouterr().err
    assert "tau.patch" in said and str(bench) in said
    (bench / SHAPES).write_text(PATCHED)
    assert patch("refresh", "--bench", bench) == 0
    assert patch("list", "--additions", additions, "--torch", site) == 0


def test_export_makes_a_branch(additions: Path, site: Path) -> None:
    commit_all(site, "upstream")
    for key, value in (("user.name", "a"), ("user.email", "b@c")):
        run_git(site, "config", key, value)
    assert patch("export", "--additions", additions, "--branch", "mine", site) == 0
    log = run_git(site, "log", "--format=%s", "mine").split("\n")
    assert log[:3] == ["Do more", "Do a thing", "upstream"]


def test_patch_alone_and_without_its_words_says_what_it_can_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        patch()
    with pytest.raises(SystemExit):
        patch("new", "x")
    assert "--why" in capsys.readouterr().err
