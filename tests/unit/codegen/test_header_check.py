"""A base whose headers are not those that its YAML makes is refused, and the file named."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.codegen import header_check
from torchfork.errors import BaseRefusedError
from torchfork.upstream.base import Base

HEADERS = {
    "ATen/ops/relu.h": "// relu\n",
    "ATen/Functions.h": "// functions\n",
    "autograd/Functions.h": "// nodes\n",
    "headeronly/core/enum_tag.h": "// tags\n",
}
WRAPPED = header_check.Wrapper("#if !defined(STABLE)\n", "#endif\n")


@pytest.fixture
def world(tmp_path: Path) -> tuple[Base, Path]:
    """A base with the headers as its generator makes them, and the generated ones."""
    base, generated = sample.base(tmp_path / "base"), tmp_path / "generated"
    for name, text in HEADERS.items():
        (generated / name).parent.mkdir(parents=True, exist_ok=True)
        (generated / name).write_text(text)
    for header, relative in header_check.generated_headers(generated):
        (base.include / relative).parent.mkdir(parents=True, exist_ok=True)
        (base.include / relative).write_text(header.read_text())
    (base.include / "ATen" / "ops" / "from_blob.h").write_text("// by hand\n")
    return base, generated


def test_a_whole_base_passes(world: tuple[Base, Path]) -> None:
    report = header_check.compare_headers(*world)
    assert report.compared == len(HEADERS) and report.wrapper == header_check.Wrapper()


def test_a_release_that_wraps_its_headers_passes_and_the_wrapper_is_known(
    world: tuple[Base, Path],
) -> None:
    base, generated = world
    for header, relative in header_check.generated_headers(generated):
        (base.include / relative).write_text(WRAPPED.around(header.read_text()))
    assert header_check.compare_headers(base, generated).wrapper == WRAPPED


@pytest.mark.parametrize(
    "edited",
    ["ATen/ops/relu.h", "ATen/Functions.h", "torch/csrc/autograd/generated/Functions.h"],
)
def test_an_edited_header_is_refused_and_named(world: tuple[Base, Path], edited: str) -> None:
    base, generated = world
    (base.include / edited).write_text("// edited\n")
    with pytest.raises(BaseRefusedError, match=f"torch/include/{edited} differs") as caught:
        header_check.compare_headers(base, generated)
    assert caught.value.where == str(base.include / edited)
    assert caught.value.exit_code == 23 and "--from-source" in caught.value.next


def test_a_header_that_a_wrapping_release_leaves_unwrapped_passes(
    world: tuple[Base, Path],
) -> None:
    """As releases since 2.9 leave those of torch/headeronly."""
    base, generated = world
    for header, relative in header_check.generated_headers(generated):
        if "headeronly" not in relative:
            (base.include / relative).write_text(WRAPPED.around(header.read_text()))
    assert header_check.compare_headers(base, generated).compared == len(HEADERS)


@pytest.mark.parametrize("text", ["// relu\n#define MORE\n", "#define MORE\n// relu\n"])
def test_text_put_around_one_header_is_an_edit_and_no_wrapper(
    world: tuple[Base, Path], text: str
) -> None:
    base, generated = world
    (base.include / "ATen" / "ops" / "relu.h").write_text(text)
    with pytest.raises(BaseRefusedError, match=r"ATen/ops/relu\.h differs"):
        header_check.compare_headers(base, generated)


def test_a_header_that_the_yaml_does_not_make_is_refused_and_named(
    world: tuple[Base, Path],
) -> None:
    base, generated = world
    (base.include / "ATen" / "ops" / "stray.h").write_text("")
    with pytest.raises(BaseRefusedError, match=r"ATen/ops/stray\.h is not made by its YAML"):
        header_check.compare_headers(base, generated)


def test_headers_that_only_upstreams_build_needs_may_be_missing(world: tuple[Base, Path]) -> None:
    base, generated = world
    (base.include / "ATen" / "Functions.h").unlink()
    assert header_check.compare_headers(base, generated).compared == len(HEADERS) - 1


def test_a_base_without_any_generated_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseRefusedError, match="holds none"):
        header_check.compare_headers(sample.base(tmp_path), tmp_path / "generated")
