"""Patches and the lists that are filled from the additions, in the same files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sample_additions
from sample_manifest import MANIFEST, NOTHING, reader
from sample_patches import about_toml, diff, hook, write

from torchfork.additions import merge
from torchfork.edits import patches
from torchfork.edits.lists import edit_lists
from torchfork.edits.patches import Tree, layered, plan
from torchfork.errors import PatchError
from torchfork.pipelines import graft as pipeline
from torchfork.util.blocks import strip_blocks
from torchfork.util.ui import Ui

OVERRIDES = "torch/overrides.py"


def test_a_patch_and_a_list_in_the_same_file_keep_both(tmp_path: Path) -> None:
    upstream = reader()(OVERRIDES) or ""
    anchor = next(line for line in upstream.splitlines() if "ret: " in line)
    mine = hook(OVERRIDES, f"after = '{anchor}'", "        torch.mine: lambda x: -1,\n")
    changed = upstream.replace("torch.zeros,", "torch.zeros,  # kept")
    assert changed != upstream
    series = write(
        tmp_path, "mine * both # x\nkept.patch * both # x\n",
        {"mine/patch.toml": about_toml(mine),
         "kept.patch": diff({OVERRIDES: upstream}, {OVERRIDES: changed})},
    )  # fmt: skip
    tree = Tree(reader(), list)
    report = plan(series, tree, "2.13.0", "graft")
    assert report.ok
    with_patches = layered(tree, report.texts)
    filled = edit_lists(with_patches.read, MANIFEST, "graft", ())[OVERRIDES]
    for part in ("torch.mine: lambda x: -1", "# kept", "torch.gadd: lambda"):
        assert part in filled
    compile(filled, OVERRIDES, "exec")
    # what the lists put in comes out again, and the patches stay
    assert strip_blocks(filled, OVERRIDES) == report.texts[OVERRIDES]
    assert edit_lists(layered(tree, {OVERRIDES: filled}).read, NOTHING, "graft", ()) == {
        OVERRIDES: report.texts[OVERRIDES]
    }


def test_the_generator_that_runs_is_the_patched_one_until_the_patch_goes(tmp_path: Path) -> None:
    base = sample_additions.base(tmp_path / "base")
    (base.root / "torchgen" / "model.py").write_text("x = 1\n")
    additions = sample_additions.write(tmp_path / "mine")
    tree = merge.prepare(base, additions, tmp_path / "tree")
    changed = {"torchgen/model.py": "x = 2\n", "torchgen/extra.py": "", "torch/a": ""}
    patched = merge.MergedTree(tree.root, tree.merged, changed)
    merge.apply_edits(base, patched, {}, ())
    assert (tree.root / "torchgen" / "model.py").read_text() == "x = 2\n"
    assert (tree.root / "torchgen" / "extra.py").is_file()
    assert not (tree.root / "torch").exists()
    merge.apply_edits(base, tree, {}, ())
    assert (tree.root / "torchgen" / "model.py").read_text() == "x = 1\n"
    assert not (tree.root / "torchgen" / "extra.py").exists()


def graft(tmp_path: Path, series: str, files: dict[str, str]) -> Any:
    base = sample_additions.base(tmp_path / "base")
    (base.root / "torch").mkdir()
    (base.root / "torch" / "a.py").write_text("a\n")
    additions = sample_additions.write(tmp_path / "mine")
    write(additions.root, series, files)
    tree = patches.directory(base.root)
    report = patches.plan_additions(additions, tree, "9.1.0", "graft", tmp_path / "cache")
    return patches.wheel_texts(report.texts)


def test_a_wheel_gets_the_patched_files_and_what_it_cannot_take_is_refused(tmp_path: Path) -> None:
    files = {"x.patch": diff({}, {"aten/src/ATen/native/Mine.cpp": "int x;\n"})}
    with pytest.raises(PatchError, match="graft build") as caught:
        graft(tmp_path / "a", "x.patch * both # y\n", files)
    assert "--from-source" in caught.value.next and "series:1" in caught.value.where
    assert graft(tmp_path / "b", "x.patch * source # y\n", files) == {}
    changed = {"torch/a.py": "b\n", "torch/new.py": "n\n"}
    good = {"x.patch": diff({"torch/a.py": "a\n"}, {**changed})}
    assert graft(tmp_path / "d", "x.patch * both # y\n", good) == changed
    gone = {"x.patch": diff({"torch/a.py": "a\n"}, {"torch/a.py": None})}
    with pytest.raises(PatchError, match="away"):
        graft(tmp_path / "c", "x.patch * both # y\n", gone)


def test_a_patch_that_no_series_lists_is_not_passed_over(tmp_path: Path) -> None:
    additions = sample_additions.write(tmp_path / "mine")
    tree = patches.directory(tmp_path)
    apply = partial(pipeline.apply_patches, additions, tree, "9.1.0", "graft", Ui(quiet=True))
    assert apply() == {}
    (additions.root / "patches").mkdir()
    (additions.root / "patches" / "lost.patch").write_text(diff({}, {"torch/n.py": "n\n"}))
    with pytest.raises(PatchError, match=r"orphan: 'lost\.patch'"):
        apply()
