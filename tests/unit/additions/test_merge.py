"""Merging: insertion between markers, idempotent, taken out again bit for bit (invariant 3)."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample
from hypothesis import given
from hypothesis import strategies as st
from sample_files import lay, snapshot

from torchfork.additions import merge
from torchfork.additions.merge import MERGED_FILES, MergedTree, merge_text
from torchfork.additions.yaml_file import Entry, YamlFile
from torchfork.errors import StateError
from torchfork.upstream.base import Base
from torchfork.util.blocks import BEGIN, END, strip_blocks

PATH = "native_functions.yaml"
HOOKED = "torchgen/lists.py"


def ours(text: str) -> YamlFile:
    return YamlFile(Path("ours.yaml"), text, (Entry(Path("ours.yaml"), 1, "x", {}, {}),))


lines = st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=20))
texts = lines.filter(lambda ls: not any("torchfork:" in line for line in ls)).map(
    lambda ls: "".join(f"{line}\n" for line in ls)
)


@given(upstream=texts.filter(bool), added=texts)
def test_merging_is_insertion_idempotent_and_reversible(upstream: str, added: str) -> None:
    once = merge_text(upstream, ours(added), PATH).text
    assert once.startswith(upstream) and added in once
    assert merge_text(once, ours(added), PATH).text == once
    other = merge_text(upstream, ours("- func: other\n"), PATH).text
    assert merge_text(other, ours(added), PATH).text == once
    assert strip_blocks(once, PATH) == upstream
    assert merge_text(once, YamlFile(Path("o"), "", ()), PATH).text == upstream


def test_lines_of_the_merged_file_map_back_to_ours_and_a_last_line_is_ended() -> None:
    merged = merge_text("a\nb\n", ours("one\ntwo\n"), PATH)
    at = merged.text.splitlines().index("two") + 1
    assert merged.our_line(at) == 2 and merged.our_line(2) is None
    text = merge_text("upstream", ours("- func: x"), PATH).text
    assert text.splitlines() == ["upstream", f"# {BEGIN}", "- func: x", f"# {END}"]


@pytest.mark.parametrize("text", [f"a\n# {BEGIN}\nb\n", f"a\n# {END}\n", f"# {BEGIN}\n# {BEGIN}\n"])
def test_half_a_block_is_refused_and_not_guessed_at(text: str) -> None:
    with pytest.raises(StateError) as caught:
        merge_text(text, ours("x\n"), PATH)
    assert PATH in caught.value.where and caught.value.exit_code == 32


@pytest.fixture
def base(tmp_path: Path) -> Base:
    made = sample.base(tmp_path / "base")
    lay(made.root, {HOOKED: "LIST = [\n]\n", "torchgen/__pycache__/x.pyc": b""})
    return made


def prepared(base: Base, tmp_path: Path, native: str = sample.NATIVE) -> MergedTree:
    additions = sample.write(tmp_path / "additions", native)
    return merge.prepare(base, additions, tmp_path / "tree")


def test_the_copy_has_all_of_the_base_which_stays_as_it_was(base: Base, tmp_path: Path) -> None:
    before = snapshot(base.root)
    merged = prepared(base, tmp_path)
    assert snapshot(base.root) == before
    copied = snapshot(merged.root)
    changed = {name for name, data in before.items() if copied.get(name) != data}
    assert changed == {MERGED_FILES["native"], "torchgen/__pycache__/x.pyc"}
    assert sample.NATIVE in copied[MERGED_FILES["native"]].decode()


def test_the_tree_depends_on_what_the_additions_are_now(base: Base, tmp_path: Path) -> None:
    fresh = snapshot(prepared(base, tmp_path).root)
    merged = prepared(base, tmp_path, sample.NATIVE.replace("swing", "swung"))
    edits = {HOOKED: "LIST = [\n  'swung',\n]\n", "torch/overrides.py": "x"}
    merge.apply_edits(base, merged, edits, list(edits))
    assert b"swung" in (merged.root / HOOKED).read_bytes()
    assert not (merged.root / "torch").exists(), "a copy of the generator alone"
    merged = prepared(base, tmp_path)
    merge.apply_edits(base, merged, {}, [HOOKED])
    assert snapshot(merged.root) == fresh
