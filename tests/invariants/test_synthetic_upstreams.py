"""Upstreams that change under the additions: each change is called by its name and turns it red.

A synthetic upstream is the official wheel's generator and Python files with one edit, as a later
release could have it. The same additions come through on the untouched one, so nothing here is red
for another reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from torchfork.additions.load import load
from torchfork.rebase import compare, run, targets
from torchfork.rebase.model import FAILED, IMPOSSIBLE, NOT_REACHED, PASSED, TargetResult
from torchfork.upstream import pins as releases
from torchfork.upstream import tree
from torchfork.upstream.base import Base
from torchfork.util import files

pytestmark = pytest.mark.wheel

NATIVE = "torchgen/packaged/ATen/native/native_functions.yaml"
AUTOGRAD = "torchgen/packaged/autograd"
HEADER = "torch/include/torch/csrc/autograd/FunctionsManual.h"
ADDED = """\
- func: synth_double(Tensor self) -> Tensor
  variants: function, method
  dispatch:
    CompositeExplicitAutograd: synth_double
  autogen: synth_double.out

- func: synth_half(Tensor self) -> Tensor
"""
FORMULAS = """\
- name: synth_double(Tensor self) -> Tensor
  self: grad * 2
  result: auto_linear
"""
ENTRY = "\n- func: {} -> Tensor\n  dispatch:\n    CompositeExplicitAutograd: theirs\n"


@dataclass(frozen=True)
class World:
    """Where a test's upstreams, additions and results are."""

    base: Base
    root: Path
    settings: run.Settings
    carried: dict[tuple[str, str], TargetResult] = field(default_factory=dict)

    def upstream(self, edits: Mapping[str, Callable[[str], str | None]] | None = None) -> Base:
        """The base with some files edited, new, or taken away where an edit gives None.

        The same edits give the same directory.
        """
        edited = dict[str, str | None]()
        for relative, edit in (edits or {}).items():
            path = self.base.root / relative
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            edited[relative] = edit(before)
            assert edited[relative] != before, f"the edit of {relative} changes nothing"
        identity = files.sha256_text(str(self.root), repr(sorted(edited.items())))
        root = self.root / identity[:16]
        if not root.is_dir():
            self._write(root, edited)
        return replace(self.base, root=root, identity=identity, texts="", headers=None)

    def _write(self, root: Path, edited: Mapping[str, str | None]) -> None:
        for part in ("torchgen", "torch"):
            skip = shutil.ignore_patterns("lib", "bin", "test", "include", "*.so")
            copy = shutil.copytree
            copy(self.base.root / part, root / part, copy_function=link, ignore=skip)
        (root / HEADER).parent.mkdir(parents=True)
        shutil.copyfile(self.base.root / HEADER, root / HEADER)
        for relative, text in edited.items():
            (root / relative).unlink(missing_ok=True)
            if text is not None:
                (root / relative).write_text(text, encoding="utf-8")

    def carry(self, *bases: Base) -> list[TargetResult]:
        """The results on each, compared with one another as a run of the matrix does."""
        named = [(f"9.{number}.0", base) for number, base in enumerate(bases)]
        found = [self._carry(name, base) for name, base in named]
        pins, work = self.settings.opening.pins, self.settings.work
        return list(compare.compare(found, pins, work, self.settings.additions.root))

    def _carry(self, name: str, base: Base) -> TargetResult:
        """A result on its own; several tests start from one."""
        key = name, base.identity
        if key not in self.carried:
            target = targets.Target(targets.WHEEL, name)
            self.carried[key] = run.carry(target, base, self.settings, lambda _: None)
        return self.carried[key]


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def world(base: Base, tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("synthetic")
    (root / "added").mkdir()
    (root / "added" / "native_functions_additions.yaml").write_text(ADDED)
    (root / "added" / "derivatives_additions.yaml").write_text(FORMULAS)
    pins = releases.load()
    opening = targets.TargetOpening(base.interpreter, pins, root / "cache", "", False)
    settings = run.Settings(load(root / "added"), opening, "abc", root / "work", 1, 1, True)
    return World(base, root, settings)


@pytest.fixture(scope="module")
def untouched(world: World) -> TargetResult:
    """What comes out without any change, which every test compares with."""
    (result,) = world.carry(world.upstream())
    return result


def states(result: TargetResult) -> dict[str, str]:
    return {tier.tier: tier.state for tier in result.tiers if tier.tier in "abc"}


def test_the_untouched_upstream_takes_the_additions(untouched: TargetResult) -> None:
    assert states(untouched) == {"a": PASSED, "b": PASSED, "c": PASSED}
    assert not untouched.red
    assert {row.state for row in untouched.operators} == {PASSED}


def appended(text: str) -> Callable[[str], str]:
    return lambda before: before + text


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda before: before.replace(old, new)


CHANGES: dict[str, tuple[dict[str, Callable[[str], str | None]], str, str]] = {
    "the same operator landed": (
        {NATIVE: appended(ENTRY.format("synth_double(Tensor self)"))}, "a", "landed upstream",
    ),
    "another operator took the name": (
        {NATIVE: appended(ENTRY.format("synth_double(Tensor self, int n)"))},
        "a", "name taken upstream",
    ),
    "the generator lost a function": (
        {f"{AUTOGRAD}/gen_view_funcs.py": replaced("def gen_view_funcs(", "def gen_views(")},
        "a", "code generator changed",
    ),
    "the generator's function wants more": (
        {f"{AUTOGRAD}/gen_trace_type.py": replaced(
            "native_functions: list[NativeFunction], template_path: str\n",
            "native_functions: list[NativeFunction], keys: set[str], template_path: str\n",
        )},
        "a", "code generator changed",
    ),
    "a hook's place was deleted": (
        {"torch/overrides.py": lambda text: re.sub(
            r"(?m)^    ret: [dD]ict\[Callable, Callable\] = \{", "    ret = {", text
        )},
        "b", "anchor gone",
    ),
    "a hook's file was deleted": ({"torch/overrides.py": lambda text: None}, "b", "anchor gone"),
    "a hook's place is there twice": (
        {f"{AUTOGRAD}/gen_variable_type.py": appended(
            "\nGRADIENT_IMPLEMENTED_FOR_COMPLEX = {\n}\n"
        )},
        "b", "anchor doubled",
    ),
    "a template changed its form": (
        {f"{AUTOGRAD}/templates/python_torch_functions.cpp": replaced(
            "namespace torch", "namespace t"
        )},
        "c", "template changed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_told_by_its_name_at_its_tier_with_what_to_do(
    change: str, world: World, untouched: TargetResult
) -> None:
    edits, tier, kind = CHANGES[change]
    (result,) = world.carry(world.upstream(edits))
    assert result.red
    failed = result.first_failure
    assert failed is not None and failed.finding is not None
    assert (failed.tier, failed.finding.kind) == (tier, kind), failed.log
    assert "9.0.0" in failed.finding.advice and len(failed.finding.advice) > 40
    assert failed.finding.what and failed.finding.next and failed.log
    later = "abc"["abc".index(tier) + 1 :]
    assert all(states(result)[letter] == NOT_REACHED for letter in later)


def test_only_the_operator_that_landed_is_marked(world: World) -> None:
    entry = ENTRY.format("synth_double(Tensor self)")
    (result,) = world.carry(world.upstream({NATIVE: appended(entry)}))
    marked = {row.name: row.state for row in result.operators}
    assert marked == {"synth_double": FAILED, "synth_half": NOT_REACHED}


def test_two_collisions_are_both_told_at_once(world: World) -> None:
    both = ENTRY.format("synth_double(Tensor self)") + ENTRY.format("synth_half(Tensor self)")
    (result,) = world.carry(world.upstream({NATIVE: appended(both)}))
    assert {row.state for row in result.operators} == {FAILED}
    assert [finding.kind for finding in result.tiers[0].findings] == ["landed upstream"] * 2


def test_a_lost_place_is_marked_in_its_own_row(world: World) -> None:
    edits = CHANGES["a hook's place was deleted"][0]
    (result,) = world.carry(world.upstream(edits))
    rows = {row.name: row.state for tier in result.tiers for row in tier.rows}
    assert rows["torch/overrides.py"] == FAILED
    assert [name for name, state in rows.items() if state == FAILED] == ["torch/overrides.py"]


def test_what_an_earlier_release_took_is_called_new_validation(world: World) -> None:
    """An assertion more in the generator: the additions did not change, upstream did."""
    refusal = (
        '        if str(self.func.name) == "synth_half":\n'
        '            raise AssertionError("synth_half: halves must say what they halve")\n'
    )

    def stricter(text: str) -> str:
        return re.sub(r"(?m)^    def __post_init__\(self\) -> None:\n(?=(?s:.*?)structured)",
                      lambda found: found[0] + refusal, text, count=1)  # fmt: skip

    def strict(text: str) -> str:
        at = text.index("class NativeFunction:")
        return text[:at] + stricter(text[at:])

    before = world.upstream()
    after = world.upstream({"torchgen/model.py": strict})
    first, second = world.carry(before, after)
    assert not first.red
    failed = second.first_failure
    assert failed is not None and failed.finding is not None
    assert failed.finding.kind == "new validation", failed.log
    assert "torch 9.0.0 accepted it" in failed.finding.why
    assert "native_functions_additions.yaml" in failed.finding.where
    added = second.changes.sections["validations"] if second.changes else ()
    assert not second.facts or any("halves must say" in line for line in added)


def test_changed_derivative_syntax_is_told_with_the_line_of_the_formula(world: World) -> None:
    """A release that no longer knows `auto_linear`."""
    gone = {f"{AUTOGRAD}/load_derivatives.py": lambda text: text.replace("auto_linear", "linear")}
    first, second = world.carry(world.upstream(), world.upstream(gone))
    assert not first.red
    assert second.red, "the formula means something else now, and nobody said so"
    failed = second.first_failure
    assert failed is not None and failed.finding is not None
    assert failed.finding.kind in {"new validation", "derivative refused"}, failed.log


def test_what_changed_upstream_is_listed(world: World) -> None:
    edits: dict[str, Callable[[str], str | None]] = {
        NATIVE: appended("\n- func: synth_half.theirs(Tensor self, Scalar by) -> Tensor\n"),
        f"{AUTOGRAD}/templates/VariableType.cpp": appended("// more\n"),
    }
    _, second = world.carry(world.upstream(), world.upstream(edits))
    changes = second.changes
    assert changes is not None and changes.since == "9.0.0" and changes.operators >= 1
    touched = ("+ synth_half.theirs(Tensor self, Scalar by) -> Tensor",)
    assert changes.sections["touched"] == touched
    assert changes.sections["templates"] == ("~ autograd/templates/VariableType.cpp",)


@pytest.fixture(scope="module")
def source(world: World) -> Path:
    """A source tree in a git repository, made of what the wheel has of it."""
    root = world.root / "pytorch"
    wheel = world.upstream().root
    for own, packaged in tree.MOVED.items():
        place = wheel / packaged if (wheel / packaged).exists() else world.base.root / packaged
        if place.is_dir():
            shutil.copytree(place, root / own, ignore=shutil.ignore_patterns("__pycache__"))
        elif place.is_file():
            (root / own).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, root / own)
    for name in ("torchgen", "torch"):
        skip = shutil.ignore_patterns("packaged", "__pycache__", "include")
        shutil.copytree(wheel / name, root / name, ignore=skip, dirs_exist_ok=True)
    version = world.base.public_version
    (root / "version.txt").write_text(f"{version}a0\n")
    (root / "setup.py").write_text("")
    (root / "pyproject.toml").write_text("")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run([*git, "config", "uploadpack.allowFilter", "true"], check=True)
    subprocess.run([*git, "add", "--all", "--force"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "upstream"], check=True)
    return root


def run_on(world: World, word: str, repository: str = "") -> TargetResult:
    opening = replace(world.settings.opening, repository=repository)
    settings = replace(world.settings, opening=opening, tiers="abcd")
    chosen = targets.parse([word], opening.pins, everything=False)
    return run.run(chosen, settings, lambda *_: None).targets[0]


def test_a_local_tree_comes_through_and_says_where_it_ends(world: World, source: Path) -> None:
    result = run_on(world, str(source))
    assert states(result) == {"a": PASSED, "b": PASSED, "c": PASSED}, result.first_failure
    assert result.tiers[3].state == IMPOSSIBLE and "headers" in result.tiers[3].outcome
    head = subprocess.run(
        ["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert result.commit == head.stdout.strip()


def test_a_git_ref_comes_through_without_a_checkout_of_ones_own(world: World, source: Path) -> None:
    result = run_on(world, "main", f"file://{source}")
    assert states(result) == {"a": PASSED, "b": PASSED, "c": PASSED}, result.first_failure


def test_a_ref_that_is_not_there_is_red(world: World, source: Path) -> None:
    result = run_on(world, "no-such-branch", f"file://{source}")
    failed = result.first_failure
    assert failed is not None and failed.finding is not None
    assert failed.finding.kind == "not available"
