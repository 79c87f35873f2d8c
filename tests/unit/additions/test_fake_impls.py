"""Rules for fake tensors: for the additions' own operators alone, left out with their entries."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions import fake_impls, ranges, validate
from torchfork.additions.load import Additions, load
from torchfork.codegen.model import Manifest
from torchfork.edits.lists import edit_lists
from torchfork.errors import AdditionsError, CollisionError, ForkError
from torchfork.upstream.base import Upstream

NATIVE = """\
- func: swing(Tensor self) -> Tensor
- func: keep(Tensor self) -> Tensor
  torch: "<2.15"
"""
RULES = """\
import torch
from torch._subclasses.fake_impls import register_op_impl

aten = torch.ops.aten


@register_op_impl(aten.swing.default)
def swing(fake_mode, func, self):
    return self.new_empty(fake_mode.shape_env.create_unbacked_symint())


@register_op_impl([aten.keep.default])
def keep(fake_mode, func, self):
    return NotImplemented
"""
UPSTREAM = Upstream(("relu(Tensor self) -> Tensor",), frozenset(), frozenset(), {})
EDITED = "torch/_subclasses/fake_impls.py"


def written(root: Path, rules: str = RULES) -> Additions:
    sample.write(root, NATIVE)
    (root / fake_impls.FILE).write_text(rules, encoding="utf-8")
    return load(root)


def refused(additions: Additions) -> list[ForkError]:
    return list(validate.objections(additions, UPSTREAM, "2.13.0"))


def test_rules_go_to_the_end_of_upstreams_and_come_out_again(tmp_path: Path) -> None:
    additions = written(tmp_path)
    assert refused(additions) == []

    def read(path: str) -> str | None:
        return "theirs = 1\n" if path == EDITED else None

    text = edit_lists(read, Manifest(), "graft", (), additions.fake_impls)[EDITED]
    assert text == f"theirs = 1\n# torchfork:begin\n{RULES}# torchfork:end\n"
    applied = {EDITED: text}
    assert edit_lists(applied.get, Manifest(), "graft", ()) == {EDITED: "theirs = 1\n"}


def test_a_release_without_the_operator_gets_no_rule_for_it(tmp_path: Path) -> None:
    additions = written(tmp_path)
    assert ranges.for_release(additions, "2.14.0").fake_impls == RULES
    without = ranges.for_release(additions, "2.15.0").fake_impls
    assert "keep" not in without and without.startswith(RULES[: RULES.index("@register_op_impl([")])
    assert without.count("\n") == RULES.count("\n")


def test_a_release_without_one_overload_gets_the_rules_for_the_others_alone(tmp_path: Path) -> None:
    """Importing torch would fail at a name that torch.ops.aten.keep does not have there."""
    rule = RULES[RULES.index("\n\n@register_op_impl([") :]
    rules = RULES.replace("[aten.keep.default]", "aten.keep.more") + rule
    native = NATIVE.replace("keep(", "keep.more(int n, ") + "- func: keep(Tensor self) -> Tensor\n"
    sample.write(tmp_path, native)
    (tmp_path / fake_impls.FILE).write_text(rules, encoding="utf-8")
    additions = load(tmp_path)
    assert refused(additions) == []
    without = ranges.for_release(additions, "2.15.0").fake_impls
    assert "keep.more" not in without and "aten.keep.default" in without and "swing" in without


def test_a_changed_rule_is_another_build(tmp_path: Path) -> None:
    before = written(tmp_path).fingerprint()
    assert written(tmp_path, RULES.replace("NotImplemented", "self")).fingerprint() != before


@pytest.mark.parametrize(
    ("operator", "error"),
    [("relu", CollisionError), ("swong", AdditionsError), ("swing.otu", AdditionsError)],
)
def test_a_rule_for_an_operator_of_others_is_refused_at_its_line(
    tmp_path: Path, operator: str, error: type[ForkError]
) -> None:
    rules = RULES.replace("aten.swing", f"aten.{operator}", 1).replace("otu.default", "otu")
    (found,) = refused(written(tmp_path, rules))
    assert type(found) is error and operator in found.what
    assert found.where == f"{tmp_path / fake_impls.FILE}:7"


def test_rules_that_are_not_python_are_refused_at_their_line(tmp_path: Path) -> None:
    with pytest.raises(AdditionsError) as caught:
        written(tmp_path, RULES + "def broken(:\n")
    assert caught.value.where == f"{tmp_path / fake_impls.FILE}:{RULES.count(chr(10)) + 1}"
