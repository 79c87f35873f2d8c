"""Entries for some releases only: they, their formulas and their kernels stay out of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample
from sample_files import lay

from torchfork.additions import ranges
from torchfork.additions.load import Additions, load
from torchfork.errors import AdditionsError, CollisionError

NATIVE = """\
- func: lerp_bp(Tensor self, Tensor end) -> Tensor
  variants: function
  torch: "<2.15"
  dispatch:
    CPU: lerp_bp
- func: always(Tensor self) -> Tensor
  dispatch:
    CPU: always
"""
DERIVATIVES = """\
- name: lerp_bp(Tensor self, Tensor end) -> Tensor
  torch: "<2.15"
  self: grad
- name: always(Tensor self) -> Tensor
  self: grad
"""
SOURCES = {
    "native/LerpBp.cpp": "#include <ATen/ops/lerp_bp_native.h>\n",
    "native/Always.cpp": "#include <ATen/ops/always_native.h>\n",
    "native/Shared.h": "// no operator's header\n",
}


def written(root: Path, native: str = NATIVE, derivatives: str = DERIVATIVES) -> Additions:
    files = {
        "native_functions_additions.yaml": native, "derivatives_additions.yaml": derivatives,
        **{f"aten_src/{name}": text for name, text in SOURCES.items()},
    }  # fmt: skip
    lay(root, files)
    return load(root)


def names(additions: Additions) -> list[str]:
    return [entry.name for entry in additions.native.entries]


def test_a_release_in_the_range_gets_all_of_it_without_the_range(tmp_path: Path) -> None:
    whole = written(tmp_path)
    additions = ranges.for_release(whole, "2.14.1+cu130")
    assert names(additions) == ["lerp_bp", "always"]
    assert additions.sources == whole.sources
    for file, before in ((additions.native, NATIVE), (additions.derivatives, DERIVATIVES)):
        # What is merged into upstream's YAML has no field that torchgen does not know, and every
        # other line is where it was: errors of torchgen's name ours.
        assert file.text == before.replace('  torch: "<2.15"\n', "\n")
        assert all("torch" not in entry.fields for entry in file.entries)


@pytest.mark.parametrize(
    ("native", "line"),
    [
        ('- torch: "<2.15"\n  func: f(Tensor self) -> Tensor\n', 1),
        ('- {func: "f(Tensor self) -> Tensor", torch: "<2.15"}\n', 1),
        ("- func: f(Tensor self) -> Tensor\n  torch: >-\n    <2.15\n", 2),
        ("- func: f(Tensor self) -> Tensor\n  torch: <2.15,\n    >=2.8\n", 2),
    ],
)
def test_a_range_that_is_no_line_is_refused(tmp_path: Path, native: str, line: int) -> None:
    """Else upstream's YAML would lose the entry, or get one that is malformed."""
    with pytest.raises(AdditionsError, match="one line of its own") as caught:
        ranges.for_release(written(tmp_path, native, ""), "2.14.0")
    assert caught.value.where == f"{tmp_path / 'native_functions_additions.yaml'}:{line}"


def test_a_range_may_be_plain_and_have_a_comment(tmp_path: Path) -> None:
    native = NATIVE.replace('"<2.15"', "<2.15,>=2.8  # upstream has it then")
    assert names(ranges.for_release(written(tmp_path, native, ""), "2.14.0")) == names(
        load(tmp_path)
    )


@pytest.mark.parametrize("version", ["2.15.0", "2.15.0+cpu", "2.16.0.dev20270101"])
def test_a_release_beyond_it_gets_nothing_of_the_operator(tmp_path: Path, version: str) -> None:
    whole = written(tmp_path)
    additions = ranges.for_release(whole, version)
    assert names(additions) == ["always"]
    assert [entry.name for entry in additions.derivatives.entries] == ["always"]
    assert "lerp_bp" not in additions.native.text + additions.derivatives.text
    assert [path.name for path in additions.sources] == ["Always.cpp", "Shared.h"]
    assert additions.native.entries[0].line == whole.native.entries[1].line
    assert ranges.left_out(whole, version) == {"lerp_bp": "<2.15"}


def test_a_formula_goes_with_its_entry_and_needs_no_range(tmp_path: Path) -> None:
    whole = written(tmp_path, derivatives=DERIVATIVES.replace('  torch: "<2.15"\n', ""))
    for version, formulas in (("2.15.0", ["always"]), ("2.14.0", ["lerp_bp", "always"])):
        kept = ranges.for_release(whole, version).derivatives.entries
        assert [entry.name for entry in kept] == formulas


@pytest.mark.parametrize(
    ("text", "possible"),
    [
        (">=2.14, <2.13", False), (">2.13, <=2.13", False), ("==2.13, ==2.14", False),
        (">2.13, <2.14", True), (">=2.13, <=2.13", True), ("==2.13.*, !=2.13.0", True),
        ("!=2.13", True), ("<2.8, >=2.6.dev1", True), ("===odd", False),
    ],
)  # fmt: skip
def test_a_range_without_releases_is_refused(tmp_path: Path, text: str, possible: bool) -> None:
    whole = written(tmp_path, NATIVE.replace("<2.15", text), "")
    if possible:
        ranges.for_release(whole, "2.13.0")
        return
    with pytest.raises(AdditionsError, match="no release in it") as caught:
        ranges.for_release(whole, "2.13.0")
    assert caught.value.where.endswith("native_functions_additions.yaml:3")


def test_two_forms_of_an_operator_may_share_the_releases(tmp_path: Path) -> None:
    both = NATIVE.replace("- func: always(Tensor self)", "- func: lerp_bp(Tensor self, Tensor end)")
    both = both.replace("    CPU: always", '    MTIA: lerp_bp\n  torch: ">=2.15"')
    additions = written(tmp_path, both, "")
    for version, keys in (("2.14.0", {"CPU"}), ("2.15.0", {"MTIA"})):
        (entry,) = ranges.for_release(additions, version).native.entries
        assert set(entry.fields["dispatch"]) == keys
        assert ranges.left_out(additions, version) == {}
    overlapping = written(tmp_path, both.replace(">=2.15", ">=2.14"), "")
    with pytest.raises(CollisionError) as caught:
        ranges.for_release(overlapping, "2.14.0")
    assert caught.value.where.endswith("native_functions_additions.yaml:6")


def test_ranges_that_cannot_be_read_are_all_named(tmp_path: Path) -> None:
    wrong = NATIVE.replace('"<2.15"', '"before 2.15"')
    additions = written(tmp_path, wrong, DERIVATIVES.replace('"<2.15"', "[2]"))
    with pytest.raises(AdditionsError) as caught:
        ranges.for_release(additions, "2.13.0")
    places = [error.where.rpartition("/")[2] for error in (caught.value, *caught.value.also)]
    assert places == ["native_functions_additions.yaml:3", "derivatives_additions.yaml:2"]


def test_additions_without_ranges_are_the_same_for_every_release(tmp_path: Path) -> None:
    additions = load(sample.write(tmp_path / "mine").root)
    assert ranges.for_release(additions, "2.6.0") == additions
