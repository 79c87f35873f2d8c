"""How a patch stands to each kind of upstream, and what is reported of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_files import commit_all, lay
from sample_files import git as run_git
from sample_patches import ABOUT, FUNCTIONS, UPSTREAM, about_toml, content, diff, hook, tree, write

from torchfork.edits.patches import Outcome, Report, Series, State, directory, plan
from torchfork.edits.patches import write as write_texts
from torchfork.errors import PatchConflictError, PatchError, StateError, UsageError

SHAPES = "torch/shapes.py"
PATCHED = FUNCTIONS.replace("2 * math.pi * r", "math.tau * r")
LINES = "middle = 1.5\n"
HOOK = hook("torch/other.py", 'after = "first = 1"', LINES)


@pytest.fixture
def series(tmp_path: Path) -> Series:
    return write(
        tmp_path,
        "tau.patch  *  both  # shorter\nmore  >=2.6,<3  both  # needed\n",
        {
            "tau.patch": diff({SHAPES: FUNCTIONS}, {SHAPES: PATCHED}),
            "more/patch.toml": about_toml(HOOK),
            "more/torch/deep/new.py": "q = 1\n",
        },
    )


def states(series: Series, texts: dict[str, str]) -> list[State]:
    report = plan(series, tree(texts), "2.13.0+cpu", "graft")
    return [outcome.state for outcome in report.outcomes]


def outcome(series: Series, texts: dict[str, str], *, ancestor: bool = True) -> Outcome:
    return plan(series, tree(texts), "2.15.0", "graft", [tree()] if ancestor else []).outcomes[0]


def of_one(root: Path, before: dict[str, str], after: dict[str, str | None]) -> Series:
    return write(root, "x.patch * both # y\n", {"x.patch": diff(before, after)})


def with_shapes(text: str) -> dict[str, str]:
    return {**UPSTREAM, SHAPES: text}


def test_both_kinds_of_patch_apply_and_nothing_else_changes(series: Series) -> None:
    report = plan(series, tree(), "2.13.0+cpu", "graft")
    assert [o.state for o in report.outcomes] == [State.APPLIES, State.APPLIES]
    assert report.ok and not report.attention()
    assert report.texts == {
        SHAPES: PATCHED,
        "torch/deep/new.py": "q = 1\n",
        "torch/other.py": "first = 1\n# torchfork:begin more\nmiddle = 1.5\n# torchfork:end more\n"
        "second = 2\n",
    }


def test_a_release_or_build_mode_out_of_the_range_is_left_alone(tmp_path: Path) -> None:
    series = write(
        tmp_path, "more >=2.8 source # x\n",
        {"more/patch.toml": about_toml(), "more/torch/new.py": "\n"},
    )  # fmt: skip
    for report in (
        plan(series, tree(), "2.7.1", "source"),
        plan(series, tree(), "2.13.0", "graft"),
    ):
        assert [o.state for o in report.outcomes] == [State.NOT_HERE] and not report.texts
    nightly = plan(series, tree(), "2.8.0.dev20250501+cpu", "source")
    assert nightly.outcomes[0].state is State.APPLIES
    with pytest.raises(UsageError, match="main"):
        plan(series, tree(), "main", "source")


def test_fuzz_is_zero_and_whitespace_counts(series: Series) -> None:
    for changed in (
        FUNCTIONS.replace("NAMES = [", "NAMES = [  "),
        FUNCTIONS.replace("def around(r):", "def around(r): "),
        FUNCTIONS.replace("\n", "\r\n"),
        FUNCTIONS.replace("    return 2", "\treturn 2"),
    ):
        assert states(series, with_shapes(changed))[0] is State.CONFLICTS, changed


def test_a_context_that_changed_is_merged_where_the_origin_is_known(series: Series) -> None:
    changed = FUNCTIONS.replace("NAMES = [", "__all__ = [")
    found = outcome(series, with_shapes(changed))
    assert found.state is State.MERGED
    assert found.texts == {SHAPES: changed.replace("2 * math.pi * r", "math.tau * r")}
    report = plan(series, tree(with_shapes(changed)), "2.15.0", "graft", [tree()])
    assert report.ok and "patch edit --torch 2.15.0" in report.attention()[0]
    (error,) = report.objections()
    assert error.kind == "patch needs refresh" and "series:1" in error.where


def test_a_patch_that_landed_is_to_be_dropped(series: Series) -> None:
    report = plan(series, tree(with_shapes(PATCHED)), "2.15.0", "graft")
    assert report.outcomes[0].state is State.LANDED and SHAPES not in report.texts
    assert "drop it" in report.attention()[0] and report.ok
    (error,) = report.objections()
    assert error.kind == "patch landed upstream" and "<2.15.0" in error.next
    # also among other changes, where the merge sees it
    reworked = PATCHED.replace("NAMES = [", "__all__ = [")
    assert outcome(series, with_shapes(reworked)).state is State.LANDED


def test_lines_that_upstream_rewrote_conflict_with_both_sides(series: Series) -> None:
    changed = FUNCTIONS.replace("2 * math.pi * r", "2.0 * math.pi * r")
    for ancestor in (True, False):
        ancestors = [tree()] if ancestor else []
        report = plan(series, tree(with_shapes(changed)), "2.15.0", "graft", ancestors)
        assert not report.ok and report.texts == {}
        with pytest.raises(PatchConflictError) as caught:
            report.require()
        message = caught.value.render()
        assert "tau.patch" in message and SHAPES in message and ABOUT.why in message
        line = (series.folder / "tau.patch").read_text().split("\n").index("--- a/" + SHAPES) + 3
        assert f"tau.patch:{line}" in message, "the hunk"
        assert "return math.tau * r" in message and "return 2.0 * math.pi * r" in message
        assert "scripts/torchfork patch edit --torch 2.15.0" in message
        assert [error.kind for error in report.objections()] == ["patch conflicts"]


def test_a_renamed_file_is_followed(series: Series) -> None:
    renamed = {"torch/forms.py": FUNCTIONS, "torch/other.py": UPSTREAM["torch/other.py"]}
    found = outcome(series, renamed)
    assert found.state is State.MERGED and "torch/forms.py" in found.note
    assert found.texts == {"torch/forms.py": PATCHED}
    alone = outcome(series, renamed, ancestor=False)
    assert alone.state is State.CONFLICTS and alone.conflict
    assert "torch/forms.py" in alone.conflict.theirs


def test_a_function_that_moved_to_another_file_conflicts(series: Series) -> None:
    start = FUNCTIONS.index("def around")
    end = FUNCTIONS.index("NAMES")
    texts = {**with_shapes(FUNCTIONS[:start] + FUNCTIONS[end:]),
             "torch/round.py": "import math\n\n\n" + FUNCTIONS[start:end]}  # fmt: skip
    for ancestor in (True, False):
        found = outcome(series, texts, ancestor=ancestor)
        assert found.state is State.CONFLICTS and found.conflict
        assert "return math.tau * r" in found.conflict.ours


def test_equal_places_are_told_apart_in_the_very_file_of_the_patch_alone(tmp_path: Path) -> None:
    before = "a\nb\nc\nd\ne\nf\ng\n" * 3
    after = before.replace("d", "X", 2).replace("X", "d", 1)
    series = of_one(tmp_path, {"torch/a.py": before}, {"torch/a.py": after})
    report = plan(series, tree({"torch/a.py": before}), "2.6.0", "graft")
    assert report.texts == {"torch/a.py": after}
    for text, times in (("new\n" + before, "3 times"), (2 * before, "6 times")):
        [found] = plan(series, tree({"torch/a.py": text}), "2.6.0", "graft").outcomes
        assert found.state is State.CONFLICTS and found.conflict and times in found.conflict.why


@pytest.mark.parametrize(
    "text",
    [None, "one = 1\nsecond = 2\n", "first = 1\nsecond = 2\nfirst = 1\n"],
    ids=["no file", "no anchor", "two anchors"],
)
def test_a_hook_without_its_place_conflicts(series: Series, text: str | None) -> None:
    texts = {k: v for k, v in UPSTREAM.items() if k != "torch/other.py"}
    if text is not None:
        texts["torch/other.py"] = text
    else:
        texts["torch/elsewhere.py"] = UPSTREAM["torch/other.py"]
    report = plan(series, tree(texts), "2.15.0", "graft")
    assert [o.state for o in report.outcomes] == [State.APPLIES, State.CONFLICTS]
    assert report.texts == {}, "all or nothing"
    with pytest.raises(PatchConflictError) as caught:
        report.require()
    message = caught.value.render()
    assert "patch.toml:6" in message and "torch/other.py" in message and LINES.strip() in message
    if text is None:
        assert "torch/elsewhere.py" in message, "where the anchor is now"
    elif text.startswith("first"):
        assert "2 lines match" in message and "3: first = 1" in message


def test_a_second_run_sees_its_own_blocks(series: Series) -> None:
    first = plan(series, tree(), "2.13.0", "graft")
    texts = {n: t for n, t in {**UPSTREAM, **first.texts}.items() if t is not None}
    again = plan(series, tree(texts), "2.13.0", "graft")
    assert again.outcomes[1].state is State.APPLIED and again.texts == {}


def test_a_folder_has_landed_when_upstream_has_all_of_it(series: Series, tmp_path: Path) -> None:
    texts = {**UPSTREAM, "torch/deep/new.py": "q = 1\n",
             "torch/other.py": "first = 1\nmiddle = 1.5\nsecond = 2\n"}  # fmt: skip
    assert states(series, texts)[1] is State.LANDED
    # somebody must look at a part of it
    texts["torch/other.py"] = UPSTREAM["torch/other.py"]
    found = plan(series, tree(texts), "2.15.0", "graft").outcomes[1]
    assert found.state is State.CONFLICTS and found.conflict and "a part" in found.conflict.why
    # lines that are common elsewhere: beside the anchor, and anywhere where that is gone
    common = hook("torch/other.py", 'after = "second = 2"', "import math\n")
    series = write(tmp_path / "b", "f * both # y\n", {"f/patch.toml": about_toml(common)})
    for text, state in (
        ("import math\nfirst = 1\nsecond = 2\n", State.APPLIES),
        ("first = 1\nsecond = 2\n\nimport math\n", State.LANDED),
        ("import math\nfirst = 1\n", State.LANDED),
    ):
        assert states(series, {"torch/other.py": text}) == [state], text


def test_a_new_file_never_replaces_one_of_upstreams(series: Series, tmp_path: Path) -> None:
    texts = {**UPSTREAM, "torch/deep/new.py": "something else\n"}
    found = plan(series, tree(texts), "2.15.0", "graft").outcomes[1]
    assert found.state is State.CONFLICTS and found.conflict
    assert "something else" in found.conflict.theirs
    assert states(of_one(tmp_path / "b", {}, {"torch/other.py": "x\n"}), UPSTREAM) == [
        State.CONFLICTS
    ]


def test_later_patches_see_what_earlier_ones_did(tmp_path: Path) -> None:
    """Also in a merge: the second was made from a file that the first had changed."""
    third = PATCHED.replace("math.tau * r", "math.tau * r  # exact")
    changed = FUNCTIONS.replace("NAMES = [", "__all__ = [")
    series = write(
        tmp_path,
        "one.patch * both # y\ntwo.patch * both # y\n",
        {
            "one.patch": diff({SHAPES: FUNCTIONS}, {SHAPES: PATCHED}),
            "two.patch": diff({SHAPES: PATCHED}, {SHAPES: third}),
        },
    )
    assert plan(series, tree(), "2.6.0", "graft").texts == {SHAPES: third}
    report = plan(series, tree(with_shapes(changed)), "2.6.0", "graft", [tree()])
    assert [o.state for o in report.outcomes] == [State.MERGED, State.MERGED]
    assert report.texts == {SHAPES: third.replace("NAMES = [", "__all__ = [")}


def test_files_are_added_and_deleted_and_last_newlines_kept(tmp_path: Path) -> None:
    before = {"torch/a.py": "a\n", "torch/b.py": "x\ny", "torch/c.py": ""}
    after: dict[str, str | None] = {
        "torch/a.py": None, "torch/b.py": "x\nz", "torch/d.py": "no newline", "torch/e.py": "",
    }  # fmt: skip
    series = of_one(tmp_path, before, after)
    assert plan(series, tree(before), "2.6.0", "graft").texts == after
    other = {**before, "torch/b.py": "x\ny\n"}
    assert states(series, other) == [State.CONFLICTS], "a last newline is whitespace too"


def test_what_applies_is_what_git_am_makes_of_it(tmp_path: Path, series: Series) -> None:
    """The patch files are ordinary ones: plain git takes them and gives the same tree."""
    moved = "# a line more\n" + FUNCTIONS
    repository = lay(tmp_path / "git", {SHAPES: moved})
    commit_all(repository, "x")
    run_git(repository, "am", "-q", str(series.folder / "tau.patch"))
    made = plan(series, tree(with_shapes(moved)), "2.6.0", "graft")
    assert (repository / SHAPES).read_text() == made.texts[SHAPES], "also of lines that moved"


def apply(series: Series, root: Path, version: str) -> Report:
    report = plan(series, directory(root), version, "graft")
    report.require()
    write_texts(root, report.texts)
    return report


def test_a_failure_while_writing_puts_everything_back(series: Series, tmp_path: Path) -> None:
    root = lay(tmp_path / "tree", UPSTREAM)
    (root / "torch" / "deep").write_text("a file where a folder is wanted")
    before = content(root)
    with pytest.raises(Exception, match="deep"):
        apply(series, root, "2.13.0")
    assert content(root) == before


@pytest.mark.parametrize("link", ["torch", "torch/other.py"])
def test_nothing_is_written_through_a_link(series: Series, tmp_path: Path, link: str) -> None:
    real = lay(tmp_path / "real", UPSTREAM)
    root = lay(tmp_path / "tree", UPSTREAM)
    target = root / link
    target.rename(tmp_path / "aside")
    target.symlink_to(real / link)
    with pytest.raises(PatchError, match="symbolic link"):
        apply(series, root, "2.13.0")
    assert content(real) == UPSTREAM


def test_a_marker_without_its_other_half_is_refused(series: Series) -> None:
    texts = {**UPSTREAM, "torch/other.py": "# torchfork:begin more\nfirst = 1\n"}
    with pytest.raises(StateError, match=r"torch/other\.py"):
        plan(series, tree(texts), "2.13.0", "graft")
