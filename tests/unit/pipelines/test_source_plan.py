"""What goes into a tree: YAML, lists, kernels and patches, each where the tree has its like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sample_additions
import sample_tree as sample
from sample_files import lay
from sample_manifest import MANIFEST

from torchfork.additions.load import Additions
from torchfork.codegen import build_dir, client
from torchfork.errors import AdditionsError, DerivativeError, ForkError, StateError
from torchfork.pipelines import source
from torchfork.upstream.base import Upstream
from torchfork.upstream.tree import SourceTree
from torchfork.util.blocks import strip_blocks
from torchfork.util.ui import Ui

UPSTREAM = Upstream(
    ("relu(Tensor self) -> Tensor",), frozenset({"core"}),
    frozenset({"CPU", "CompositeExplicitAutograd"}),
)  # fmt: skip
KERNEL = "aten/src/ATen/native/cpu/SwingKernel.cpp"
META = "torch/csrc/autograd/additions"
HELPER = "ATen/native/SwingFunctionsManual.h"


class Bench:
    """A sample tree and additions; torchgen's part is played by what it would say."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree: SourceTree = sample.unpacked(root / "tree")
        self.root = root
        self.tried = 0
        monkeypatch.setattr(client, "list_operators", lambda home, scratch: UPSTREAM)
        monkeypatch.setattr(client, "describe", lambda *a: MANIFEST)
        self.refused: ForkError | None = None

        def try_sources(*_arguments: Any, symbolic_meta: Path) -> None:
            self.tried += 1
            if self.refused:
                raise self.refused
            symbolic_meta.write_text("// registrations\n")

        monkeypatch.setattr(client, "try_sources", try_sources)

    def plan(self, additions: Additions) -> source.Planned:
        layout = build_dir.for_tree(self.tree, additions, self.root / "work")
        with build_dir.locked(layout):
            return source.plan(self.tree, additions, layout, Ui(quiet=True))

    def put(self, additions: Additions) -> None:
        planned = self.plan(additions)
        source.put_in(self.tree, planned, additions, Ui(quiet=True))

    def additions(self, native: str = sample_additions.NATIVE) -> Additions:
        return sample_additions.write(
            self.root / "additions", native, sample_additions.DERIVATIVES,
            native__cpu__SwingKernel_cpp="// swing\n", native__SwingFunctionsManual_h="// help\n",
        )  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_everything_goes_where_the_tree_has_its_like(bench: Bench) -> None:
    planned = bench.plan(bench.additions())
    contents = {name: data.decode() for name, data in planned.contents.items() if data is not None}
    assert sample_additions.NATIVE in contents[sample.NATIVE]
    assert sample_additions.DERIVATIVES in contents["tools/autograd/derivatives.yaml"]
    assert "tools/autograd/deprecated.yaml" not in contents
    assert contents[KERNEL] == "// swing\n"
    assert f"#include <{HELPER}>" in contents["torch/csrc/autograd/FunctionsManual.h"]
    assert "gdh" in contents["tools/autograd/gen_inplace_or_view_type.py"]
    assert "gnn" in contents["torch/nn/functional.pyi.in"]
    assert contents[f"{META}/python_symbolic_meta.cpp"] == "// registrations\n"
    assert f'#include "{META}/python_symbolic_meta.cpp"' in contents["torch/csrc/autograd/init.cpp"]
    wrapped = {f"{META}/python_symbolic_meta.cpp", f"{META}/symbolic_meta.h"}
    assert planned.added == {KERNEL, f"aten/src/{HELPER}", *wrapped}
    assert not any("packaged" in name for name in contents)
    # upstream's own lines stay byte for byte beside the insertions
    edited = [name for name in contents if (bench.tree.root / name).is_file()]
    assert sample.NATIVE in edited
    for name in edited:
        assert strip_blocks(contents[name], name) == (bench.tree.root / name).read_text()


def test_a_plan_of_an_applied_tree_is_the_plan_of_a_clean_one(bench: Bench) -> None:
    first = bench.plan(bench.additions())
    bench.put(bench.additions())
    assert bench.plan(bench.additions()) == first


def test_the_generator_is_tried_before_the_build_until_it_refuses_nothing(bench: Bench) -> None:
    bench.refused = DerivativeError("one")
    with pytest.raises(DerivativeError):
        bench.plan(bench.additions())
    bench.refused = None
    bench.plan(bench.additions())
    bench.plan(bench.additions())
    assert bench.tried == 2
    bench.plan(bench.additions(sample_additions.NATIVE.replace("int n=1", "int n=2")))
    assert bench.tried == 3


@pytest.mark.parametrize(
    ("native", "says"),
    [
        ("- func: relu(Tensor self, int n) -> Tensor\n", "change an operator"),
        ("- func: f(Tensor self) -> Tensor\n  tags: brand_new\n", "the tag 'brand_new'"),
    ],
)
def test_what_only_a_patch_can_do_is_said_so(bench: Bench, native: str, says: str) -> None:
    root = bench.root / "bad"
    with pytest.raises(AdditionsError, match=says) as caught:
        bench.plan(sample_additions.write(root, native))
    assert "patches/" in caught.value.next and "native_functions_additions.yaml:1" in (
        caught.value.where.replace(":2", ":1")
    )


def test_a_patch_changes_what_the_additions_are_merged_into(bench: Bench) -> None:
    additions = bench.additions()
    about = 'subject = "Add a note"\nwhy = "a test"\nuntil = "never"\nupstream = "none"\n'
    lay(additions.root / "patches", {
        "series": "note  *  both  # a test\n", "note/patch.toml": about,
        "note/torch/note.py": "note = 1\n",
    })  # fmt: skip
    planned = bench.plan(additions)
    assert planned.contents["torch/note.py"] == b"note = 1\n"
    bench.put(additions)
    assert (bench.tree.root / "torch" / "note.py").is_file()


def test_other_additions_do_not_take_the_place_of_those_that_are_applied(bench: Bench) -> None:
    bench.put(bench.additions())
    other = sample_additions.write(bench.root / "other")
    with pytest.raises(StateError, match="other additions") as caught:
        source.require_same_additions(bench.tree, other)
    assert "unapply" in caught.value.next
