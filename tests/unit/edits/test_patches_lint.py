"""What a patches folder may not hold, each reported with its file, its line and its cure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_files import program
from sample_patches import ABOUT, FUNCTIONS, about_toml, diff, hook, tree, write

from torchfork.edits.patches import check, folders, git, lint, load, plan
from torchfork.edits.patches.git import Diff, parse_diff
from torchfork.edits.patches.series import parse_line
from torchfork.errors import AdditionsError, PatchError, ToolMissingError

VERSIONS = ["2.6.0", "2.13.0", "2.15.0"]
SHAPES = "torch/shapes.py"
GOOD = diff({SHAPES: FUNCTIONS}, {SHAPES: FUNCTIONS.replace("2 * math.pi", "math.tau")})
FOLDER = {"f/patch.toml": about_toml().replace("thing", "new file"), "f/torch/n.py": "n\n"}


def parse(text: str) -> Diff:
    return parse_diff(text, parse_line("x.patch * both # y", Path("patches"), 1))


def faults(root: Path, series: str, files: dict[str, str]) -> list[str]:
    return [error.render() for error in lint(write(root, series, files), VERSIONS)]


def test_good_patches_have_no_fault(tmp_path: Path) -> None:
    files = {"x.patch": GOOD, **FOLDER, "README.md": "hello"}
    listed = "x.patch * both # y\n\n# text\n f  >=2.6,<3   graft   # y\n"
    assert faults(tmp_path, listed, files) == []
    assert lint(load(tmp_path / "nowhere"), VERSIONS) == []


@pytest.mark.parametrize(
    ("series", "files", "message", "where"),
    [
        ("", {"x.patch": GOOD}, "orphan: 'x.patch'", "x.patch"),
        ("x.patch * both # y\n", {}, "not in the folder", "series:1"),
        ("x.patch * both # y\nx.patch * both # y\n", {"x.patch": GOOD}, "twice", "series:2"),
        ("x.patch * both # y\nz.patch * both # y\n", {"x.patch": GOOD, "z.patch": GOOD},
         "changes what 'x.patch' changes", "series:2"),
        ("x.patch >=3 both # y\n", {"x.patch": GOOD}, "no supported release", "series:1"),
        ("x@a.patch <2.14 both # y\nx@b.patch >=2.13 both # y\n",
         {"x@a.patch": GOOD, "x@b.patch": GOOD.replace("tau", "tau_")},
         "two variants of 'x'", "series:2"),
        ("f * both # y\ng * both # y\n",
         {**FOLDER, "g/patch.toml": about_toml(), "g/torch/n.py": "other\n"},
         "both add torch/n.py", "series:2"),
        ("f * both # y\nx.patch * both # y\n",
         {**FOLDER, "f/patch.toml": about_toml(), "x.patch": GOOD}, "same subject", "x.patch"),
        ("f * both # y\n", {"f/patch.toml": about_toml()}, "changes nothing", "patches/f"),
    ],
)  # fmt: skip
def test_a_fault_of_the_folder(
    tmp_path: Path, series: str, files: dict[str, str], message: str, where: str
) -> None:
    found = faults(tmp_path, series, files)
    assert len(found) == 1, found
    assert message in found[0] and where in found[0]


@pytest.mark.parametrize("field", ["why", "until", "upstream", "subject"])
def test_an_unexplained_patch_is_a_fault(tmp_path: Path, field: str) -> None:
    about = re.sub(rf"(?m)^{field}.*\n", "", about_toml())
    [found] = faults(tmp_path / "a", "f * both # y\n", {**FOLDER, "f/patch.toml": about})
    assert "unexplained" in found and "patch.toml" in found
    if field == "subject":
        return
    text = re.sub(rf"(?m)^{field.title()}:.*\n", "", GOOD)
    [found] = faults(tmp_path / "b", "x.patch * both # y\n", {"x.patch": text})
    assert "unexplained" in found and "x.patch" in found


@pytest.mark.parametrize(
    ("path", "mode", "why"),
    [
        ("aten/src/ATen/native/X.cpp", "graft", "compiled into"),
        ("torch/csrc/Module.cpp", "both", "compiled into"),
        ("torch/include/ATen/ops/x.h", "graft", "compiled into"),
        ("caffe2/CMakeLists.txt", "graft", "does not carry"),
        ("docs/source/torch.rst", "both", "does not carry"),
        ("torch/_C/_nn.pyi.in", "graft", "does not carry"),
        ("torchgen/packaged/ATen/native/native_functions.yaml", "graft", "own YAML"),
        ("torchgen/packaged/autograd/gen_autograd.py", "source", "elsewhere"),
    ],
)
def test_a_file_that_a_mode_lacks_is_a_fault(
    tmp_path: Path, path: str, mode: str, why: str
) -> None:
    found = faults(tmp_path, f"x.patch * {mode} # y\n", {"x.patch": diff({}, {path: "x\n"})})
    assert len(found) == 1 and path in found[0] and why in found[0] and "series:1" in found[0]
    assert ("--from-source" in found[0]) == (mode != "source")


def test_a_hook_may_be_for_one_build_mode_of_two(tmp_path: Path) -> None:
    hooks = hook("torch/_C/_nn.pyi.in", 'after = "x"', "y\n", "source")
    hooks += hook("torch/_C/_nn.pyi", 'after = "x"', "y\n", "graft")
    assert faults(tmp_path, "f * both # y\n", {"f/patch.toml": about_toml(hooks)}) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x.patch * both", "NAME VERSIONS LANE # reason"),
        ("x.patch * both #", "NAME VERSIONS LANE # reason"),
        ("x.patch 2.6 both # y", "no range"),
        ("x.patch >=2.9,<2.6 both # y", "no version is in"),
        ("x.patch * wheel # y", "no build mode"),
        ("../x.patch * both # y", "no name"),
        ("X.patch * both # y", "no name"),
        ("a/b * both # y", "no name"),
    ],
)
def test_a_line_of_the_series_that_cannot_be_read(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(PatchError, match=message) as caught:
        write(tmp_path, f"# first\n{line}\n", {})
    assert "series:2" in caught.value.where and caught.value.next


HEAD = GOOD[: GOOD.index("diff --git")]
NEW = "new file mode 100644\nindex {0}..{1}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"


def added(path: str, *, first: str = "", mode: str = "100644") -> str:
    body = NEW.format("0" * 40, "1" * 40, path=path).replace("100644", mode, 1)
    return HEAD + f"diff --git a/{first or path} b/{path}\n" + body


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (added("/etc/passwd"), "absolute"),
        (added("../out.py"), "leaves the tree"),
        (added("torch/../../out.py"), "leaves the tree"),
        (added(".git/hooks/post-checkout"), "git's own"),
        (added("torch/.GIT/config"), "git's own"),
        (added("torch//a.py"), "plain path"),
        (added("torch/./a.py"), "plain path"),
        (added("torch\\a.py"), "plain path"),
        (added("C:/a.py"), "absolute"),
        (added("torch/a.py", mode="120000"), "symbolic link"),
        (added("torch/a.py", mode="160000"), "submodule"),
        (added("torch/a.py", mode="100755"), "modes other"),
        (added("torch/b.py", first="torch/a.py"), "renames"),
        # git apply goes by these names, so a reader of the first line would be misled
        (added("torch/a.py").replace("+++ b/torch/a.py", "+++ b/torch/evil.py"), "before hunks"),
        (added("torch/a.py").replace("--- /dev/null", "--- a/torch/a.py"), "before hunks"),
        (HEAD + "diff --git a/a b/a\nold mode 100644\nnew mode 100755\n", "mode"),
        (HEAD + "diff --git a/a b/a\nsimilarity index 100%\nrename from a\n", "renames and copies"),
        (HEAD + f"diff --git a/a b/a\nindex {'1' * 40}..{'2' * 40} 100644\n"
         "GIT binary patch\n", "binary"),
        (HEAD + "diff --git a/a b/a\nindex 1234567..89abcde 100644\n", "abbreviat"),
        (HEAD + f"diff --git a/a b/a\nindex {'1' * 40}..{'2' * 40} 100644\n", "without any change"),
        (GOOD.replace("+    return", "*    return"), "lines that belong to none"),
        (GOOD.replace("@@ -7,", "@@ -7;"), "no hunk as git writes it"),
        (GOOD.replace("+    return math.tau * r\n", ""), "more or fewer lines"),
        (GOOD + "-- \n2.39.5\n", "lines that belong to none"),
        (GOOD + GOOD[GOOD.index("diff --git"):], "stands twice"),
        (GOOD.replace("0" * 40 + " Mon", "1" * 40 + " Mon"), "must begin with"),
        (GOOD.replace("[PATCH] ", "[PATCH 1/2] "), "must begin with"),
        (GOOD.replace("---\n\n", "---\n torch/shapes.py | 2 +-\n\n"), "must begin with"),
        (GOOD.replace("\n", "\r\n"), "CR LF"),
        (GOOD.rstrip("\n"), "no newline"),
        (HEAD, "changes nothing"),
    ],
)  # fmt: skip
def test_tricks_and_other_forms_are_refused_with_their_line(text: str, message: str) -> None:
    with pytest.raises(PatchError, match=message) as caught:
        parse(text)
    where = caught.value.where
    assert where.startswith("patches/x.patch:") and where.rpartition(":")[2].isdigit()


def test_the_header_is_read_and_held_to_its_form(tmp_path: Path) -> None:
    long = GOOD.replace("Why: people need it\n", "Why: people\n need it\n")
    assert parse(long).header.why == "people\nneed it"
    assert parse(GOOD).header == ABOUT
    with pytest.raises(PatchError, match="belongs to none"):
        parse(GOOD.replace("Until: ", "When: "))
    with pytest.raises(PatchError, match="belongs to none"):
        parse(GOOD.replace("Until: ", "Why: twice\nUntil: "))
    swapped = re.sub("(Why: .*\n)(Until: .*\n)", r"\2\1", GOOD)
    [found] = faults(tmp_path, "x.patch * both # y\n", {"x.patch": swapped})
    assert "not as torchfork exports it" in found


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ("[[hook]]\nfile = 'torch/a.py'\nafter = 'x'\n", "lines"),
        (hook("torch/a.py", "after = 'x'\nbefore = 'y'", "l\n"), "one of before and after"),
        (hook("docs/a.rst", "after = 'x'", "l\n"), "kinds"),
        (hook("torch/a.py", "after = 3", "l\n"), "whole line"),
        (hook("torch/a.py", "after = []", "l\n"), "whole line"),
        (hook("torch/a.py", "after = 'x'", "l\n", "wheel"), "lane"),
        (hook("torch/a.py", "after = 'x'", "no newline"),
         "newline"),
        (hook("../a.py", "after = 'x'", "l\n"), "leaves the tree"),
        ("more = 1\n", "knows no 'more'"),
        ("what", "malformed"),
    ],
)  # fmt: skip
def test_a_hook_that_cannot_be_read_is_named(tmp_path: Path, hooks: str, message: str) -> None:
    [found] = faults(tmp_path, "f * both # y\n", {**FOLDER, "f/patch.toml": about_toml(hooks)})
    assert message in found and "patch.toml" in found


def test_a_folder_needs_its_header_and_carries_no_links(tmp_path: Path) -> None:
    [found] = faults(tmp_path / "a", "f * both # y\n", {"f/torch/n.py": "n\n"})
    assert "patch.toml" in found
    series = write(tmp_path / "b", "f * both # y\n", FOLDER)
    (series.folder / "f" / "torch" / "link.py").symlink_to("/etc/passwd")
    [error] = lint(series, VERSIONS)
    assert "leads out of the additions" in error.why


def huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


@pytest.mark.parametrize("name", ["series", "f/patch.toml", "f/torch/n.py", "x.patch"])
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b"# caf\xe9\n"),
        huge,
    ],
    ids=["FIFO", "dangling", "endless", "directory", "not UTF-8", "huge"],
)
def test_what_is_no_text_file_is_refused_at_once(
    tmp_path: Path, name: str, make: Callable[[Path], object]
) -> None:
    series = write(tmp_path, "f * both # y\nx.patch * both # y\n", {**FOLDER, "x.patch": GOOD})
    path = series.folder / name
    path.unlink()
    make(path)
    if name.endswith(".py") and (path.is_dir() or (path.is_file() and path.stat().st_size < 99)):
        return  # a directory without files; bytes that are copied as they are
    with pytest.raises((PatchError, AdditionsError)) as caught:
        check(load(tmp_path), VERSIONS)
    assert str(path) in caught.value.where and caught.value.why


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_patches_that_is_no_directory_does_not_count_as_absent(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "patches")
    with pytest.raises(AdditionsError) as caught:
        load(tmp_path)
    assert caught.value.where == str(tmp_path / "patches")


def test_the_readme_has_an_example_that_works_and_every_key(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[3] / "patches" / "README.md").read_text(encoding="utf-8")
    example = readme.partition("```toml\n")[2].partition("```")[0]
    assert not faults(tmp_path, "f * both # y\n", {"f/patch.toml": example})
    for key in ("subject", "why", "until", "upstream", "[[hook]]", "hook.file", "hook.lines"):
        assert f"| `{key}` |" in readme
    for suffix in folders.COMMENTS:
        assert suffix in readme


def test_an_old_git_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "git", "echo git version 2.25.1")
    series = write(tmp_path, "x.patch * both # y\n", {"x.patch": GOOD})
    for path, message in ((tmp_path, r"too old: git version 2\.25"), (tmp_path / "no", "no git")):
        monkeypatch.setenv("PATH", str(path))
        git.require_git.cache_clear()
        with pytest.raises(ToolMissingError, match=message) as caught:
            plan(series, tree(), "2.13.0", "graft")
        assert "install git" in caught.value.next
    git.require_git.cache_clear()
