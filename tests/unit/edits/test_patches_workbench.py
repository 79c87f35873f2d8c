"""Editing patches: nothing is lost on the way to commits and back, conflicts are resolved once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sample_files import commit_all, lay
from sample_patches import ABOUT, FUNCTIONS, UPSTREAM, about_toml, content, diff, hook, tree, write

from torchfork.edits.patches import Series, State, lint, load, plan, workbench
from torchfork.edits.patches.series import Header
from torchfork.edits.patches.workbench import Bench
from torchfork.errors import PatchConflictError, PatchError, StateError, UsageError

SHAPES = "torch/shapes.py"
PATCHED = FUNCTIONS.replace("2 * math.pi * r", "math.tau * r")
HOOKS = hook("torch/other.py", 'after = "first = 1"', "middle = 1.5\n") + hook(
    "torch/other.py", 'after = "the end of the file"', "last = 3\n"
)
GEN = Header("Set x", "it must be 2", "it is 2", "none")
TAU = Header("Use tau", "people need it", "upstream does it", "none")
NEW = FUNCTIONS.replace("2 * math.pi * r", "2.0 * math.pi * r")


ODD = {"torch/odd.py": "a\r\nb\nc", "torch/deleted.py": "x\n"}
SAMPLE = {**UPSTREAM, **ODD}


@pytest.fixture
def series(tmp_path: Path) -> Series:
    """A diff, a folder, and a diff of what is awkward: line ends, no last newline, letters."""
    after = {"torch/odd.py": "a\r\nB – é\r\nc", "torch/deleted.py": None, "torch/e.py": ""}
    return write(
        tmp_path,
        "tau.patch  *  both  # shorter\nmore  >=2.6  both  # needed\nodd.patch * both # odd\n",
        {
            "tau.patch": diff({SHAPES: FUNCTIONS}, {SHAPES: PATCHED}, TAU),
            "more/patch.toml": "# a comment\n" + about_toml(HOOKS),
            "more/torch/deep/new.py": "q = 1\r\nq = 'é'",
            "odd.patch": diff(ODD, after, Header("Odd – é", "a\nb", "c", "none")),
        },
    )


def present(texts: dict[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text is not None}


def bench(series: Series, texts: dict[str, str] = SAMPLE, *, version: str = "2.13.0") -> Bench:
    root = series.folder.parent / "bench"
    made = workbench.start(root, series, tree(texts), version, "graft")
    return workbench.commit_pending(made, series, [tree(SAMPLE)])


def git(root: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=A", "-c", "user.email=b@c", "-c", "core.editor=true"]
    return subprocess.run(
        ["git", *settings, *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout


def amend(made: Bench, entry: str, path: str, text: str) -> None:
    """What a person does: change a file in the commit of a patch."""
    log = git(made.root, "log", "--format=%H %(trailers:key=Patch,valueonly,separator=)")
    commit = next(line.split()[0] for line in log.splitlines() if line.endswith(f" {entry}"))
    (made.root / path).write_bytes(text.encode())
    git(made.root, "add", "--all")
    git(made.root, "commit", "-q", f"--fixup={commit}")
    git(made.root, "rebase", "-q", "-i", "--autosquash", made.upstream)


def test_apply_and_export_give_the_same_bytes(series: Series) -> None:
    before = content(series.folder)
    made = bench(series)
    report = plan(series, tree(SAMPLE), "2.13.0", "graft")
    assert content(made.root) == present({**SAMPLE, **report.texts})
    assert git(made.root, "log", "-1", "--format=%an <%ae> %s").strip() == "A <a@b.c> Odd – é"
    assert workbench.refresh(made, series, {}) == []
    assert content(series.folder) == before
    # also where something else lies there meanwhile
    lost = series.folder / "more/torch/deep/new.py"
    lost.write_text("")
    assert workbench.refresh(made, series, {}) == [lost]
    assert content(series.folder) == before


def test_edits_go_into_a_diff_alone_or_into_a_folders_files_and_its_toml(series: Series) -> None:
    made = bench(series)
    amend(made, "tau.patch", SHAPES, PATCHED.replace("math.tau * r", "r * math.tau"))
    assert workbench.refresh(made, series, {}) == [series.folder / "tau.patch"]
    assert "r * math.tau" in str(plan(series, tree(SAMPLE), "2.13.0", "graft").texts[SHAPES])
    other = (made.root / "torch/other.py").read_text()
    (made.root / "torch/deep/new.py").unlink()
    (made.root / "torch/newer.py").write_text("z = 1\n")
    amend(made, "more", "torch/other.py", other.replace("last = 3", "last = 4\nlater = 5"))
    changed = {p.relative_to(series.folder).as_posix() for p in workbench.refresh(made, series, {})}
    assert changed == {"more/patch.toml", "more/torch/deep/new.py", "more/torch/newer.py"}
    about = (series.folder / "more/patch.toml").read_text()
    expected = "# a comment\n" + about_toml(HOOKS).replace("last = 3\n", "last = 4\nlater = 5\n")
    assert about == expected
    assert workbench.refresh(bench(load(series.folder.parent)), series, {}) == []


def test_an_edit_outside_of_a_folders_blocks_is_not_lost_silently(series: Series) -> None:
    made, before = bench(series), content(series.folder)
    other = (made.root / "torch/other.py").read_text()
    amend(made, "more", "torch/other.py", other.replace("second = 2", "second = 22"))
    with pytest.raises(PatchError, match="outside of its hooks"):
        workbench.refresh(made, series, {})
    assert content(series.folder) == before


def test_a_conflict_is_resolved_once_and_goes_on(series: Series) -> None:
    root = series.folder.parent / "bench"
    texts = {**SAMPLE, SHAPES: NEW}
    made = workbench.start(root, series, tree(texts), "2.15.0", "graft")
    with pytest.raises(PatchConflictError) as caught:
        workbench.commit_pending(made, series, [tree(SAMPLE)])
    assert str(root) in caught.value.next and "patch refresh" in caught.value.next
    marked = (root / SHAPES).read_text()
    assert "<<<<<<<" in marked and "math.tau" in marked and "2.0 * math.pi" in marked

    with pytest.raises(StateError, match="not resolved"):
        workbench.commit_pending(workbench.open_bench(root), series, [])
    (root / SHAPES).write_text(NEW.replace("2.0 * math.pi * r", "1.0 * math.tau * r"))
    git(root, "add", SHAPES)
    done = workbench.commit_pending(workbench.open_bench(root), series, [])
    assert not done.pending and not done.conflict
    changed = workbench.refresh(done, series, {})
    assert changed == [series.folder / "tau.patch"]
    report = plan(load(series.folder.parent), tree(texts), "2.15.0", "graft")
    assert {o.state for o in report.outcomes} == {State.APPLIES}
    assert "1.0 * math.tau" in str(report.texts[SHAPES])


def test_what_landed_is_left_out_and_a_merged_patch_is_exported_merged(series: Series) -> None:
    landed = bench(series, {**SAMPLE, SHAPES: PATCHED}, version="2.15.0")
    assert landed.landed == ("tau.patch",) and workbench.refresh(landed, series, {}) == []
    texts = {**SAMPLE, SHAPES: FUNCTIONS.replace("NAMES = [", "__all__ = [")}
    assert plan(series, tree(texts), "2.15.0", "graft").outcomes[0].state is State.CONFLICTS
    made = bench(series, texts, version="2.15.0")
    assert workbench.refresh(made, series, {}) == [series.folder / "tau.patch"]
    assert "__all__" in (series.folder / "tau.patch").read_text()
    assert plan(series, tree(texts), "2.15.0", "graft").outcomes[0].state is State.APPLIES


def test_a_refresh_that_would_break_another_release_asks_for_a_variant(series: Series) -> None:
    texts = {**SAMPLE, SHAPES: FUNCTIONS.replace("NAMES = [", "__all__ = [")}
    known = {"2.6.0": tree(SAMPLE), "2.15.0": tree(texts)}
    made = bench(series, texts, version="2.15.0")
    before = content(series.folder)
    with pytest.raises(StateError, match=r"2\.6\.0") as caught:
        workbench.refresh(made, series, known)
    assert "tau@2.15.0" in caught.value.next and content(series.folder) == before

    (series.folder / "tau@2.15.0.patch").write_text(before["tau.patch"])
    lines = "tau.patch <2.15.0 both # shorter\ntau@2.15.0.patch >=2.15.0 both # shorter\n"
    listed = before["series"].partition("\n")[2]
    (series.folder / "series").write_text(lines + listed)
    both = load(series.folder.parent)
    assert workbench.refresh(made, both, known) == [series.folder / "tau@2.15.0.patch"]
    assert [e.name for e in both.patches][:2] == ["tau.patch", "tau@2.15.0.patch"]
    assert both.variants() == 1 and not lint(both, ["2.6.0", "2.15.0"])
    for version, upstream in known.items():
        report = plan(both, upstream, version, "graft")
        states = [outcome.state for outcome in report.outcomes]
        assert states.count(State.NOT_HERE) == 1 and states.count(State.APPLIES) == 3
    assert workbench.refresh(bench(both, texts, version="2.15.0"), both, known) == []


def test_a_new_patch_is_what_was_not_committed(series: Series) -> None:
    made = bench(series)
    (made.root / "torchgen/gen.py").write_text("x = 2\n")
    (made.root / "torchgen/staged.py").write_text("y = 1\n")
    git(made.root, "add", "torchgen/staged.py")
    line = "gen.patch  >=2.6  both  # why not"
    path = workbench.add(made, series, "gen.patch", GEN, line)
    after = load(series.folder.parent)
    assert after.patches[-1].name == "gen.patch" and path.is_file()
    assert (series.folder / "series").read_text().endswith("\n" + line + "\n")
    texts = plan(after, tree(SAMPLE), "2.13.0", "graft").texts
    assert texts["torchgen/gen.py"] == "x = 2\n" and texts["torchgen/staged.py"] == "y = 1\n"
    assert not lint(after, ["2.13.0"])
    assert workbench.refresh(made, after, {}) == []
    with pytest.raises(PatchError, match=r"gen\.patch"):
        workbench.add(made, after, "gen.patch", GEN, line)
    with pytest.raises(StateError, match="nothing"):
        workbench.add(made, after, "more.patch", GEN, line.replace("gen", "more"))


def test_nothing_is_dropped_by_accident(series: Series) -> None:
    made = bench(series)
    (made.root / SHAPES).write_text("edited\n")
    with pytest.raises(StateError, match="no commit has"):
        workbench.refresh(made, series, {})
    with pytest.raises(StateError, match="not in patches"):
        workbench.start(made.root, series, tree(SAMPLE), "2.13.0", "graft")
    git(made.root, "checkout", "-q", ".")
    git(made.root, "commit", "-q", "--allow-empty", "-m", "mine")
    with pytest.raises(PatchError, match="names no patch"):
        workbench.refresh(made, series, {})
    git(made.root, "reset", "-q", "--hard", "HEAD~2")
    with pytest.raises(PatchError, match=r"odd\.patch.* is gone"):
        workbench.refresh(made, series, {})


def test_what_no_patch_carries_is_refused_and_nothing_written(series: Series) -> None:
    made = bench(series)
    before = content(series.folder)
    (made.root / "torch/link.py").symlink_to("/etc/passwd")
    with pytest.raises(PatchError, match="symbolic link"):
        workbench.add(made, series, "gen.patch", GEN, "gen.patch * both # x")
    git(made.root, "add", "--all")
    git(made.root, "commit", "-q", "--amend", "--no-edit")
    with pytest.raises(PatchError, match="symbolic link"):
        workbench.refresh(made, series, {})
    assert content(series.folder) == before


def clone(root: Path) -> Path:
    commit_all(lay(root, SAMPLE), "upstream")
    git(root, "config", "user.name", "B")
    git(root, "config", "user.email", "b@d")
    return root


def test_a_branch_of_a_clone_has_a_commit_for_each_patch(series: Series, tmp_path: Path) -> None:
    root = clone(tmp_path / "clone")
    report = plan(series, tree(SAMPLE), "2.13.0", "source")
    assert workbench.export(report, root, "mine") == 3
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "branch", "--show-current") == "main\n"
    listed = git(root, "log", "--reverse", "--format=%an: %s", "main..mine").splitlines()
    assert listed == [f"A: {TAU.subject}", f"B: {ABOUT.subject}", "A: Odd – é"]
    git(root, "checkout", "-q", "mine")
    assert content(root) == present({**SAMPLE, **report.texts})
    with pytest.raises(UsageError, match="there already"):
        workbench.export(report, root, "mine")
    (root / SHAPES).write_text("edited")
    with pytest.raises(StateError, match="uncommitted"):
        workbench.export(report, root, "other")
    with pytest.raises(UsageError, match="no git tree"):
        workbench.export(report, tmp_path, "other")
    # and a directory of others is no workbench
    with pytest.raises(UsageError, match="not an empty"):
        workbench.start(root, series, tree(SAMPLE), "2.13.0", "graft")
    with pytest.raises(StateError, match="no workbench"):
        workbench.open_bench(root)
