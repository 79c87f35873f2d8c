"""A base whose headers are not those that its YAML makes is refused, and the file named."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample
from sample_files import lay

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
    lay(generated, HEADERS)
    for header, relative in header_check.generated_headers(generated):
        lay(base.include, {relative: header.read_bytes()})
    (base.include / "ATen" / "ops" / "from_blob.h").write_text("// by hand\n")
    return base, generated


def test_a_whole_base_passes_without_headers_that_only_upstreams_build_needs(
    world: tuple[Base, Path],
) -> None:
    base, generated = world
    report = header_check.compare_headers(base, generated)
    assert report.compared == len(HEADERS) and report.wrapper == header_check.Wrapper()
    (base.include / "ATen" / "Functions.h").unlink()
    assert header_check.compare_headers(base, generated).compared == len(HEADERS) - 1


@pytest.mark.parametrize("unwrapped", ["nothing", "headeronly"])  # as releases since 2.9 leave it
def test_a_release_that_wraps_its_headers_passes_and_the_wrapper_is_known(
    world: tuple[Base, Path], unwrapped: str
) -> None:
    base, generated = world
    for header, relative in header_check.generated_headers(generated):
        if unwrapped not in relative:
            (base.include / relative).write_text(WRAPPED.around(header.read_text()))
    found = header_check.compare_headers(base, generated)
    assert (found.compared, found.wrapper) == (len(HEADERS), WRAPPED)


@pytest.mark.parametrize(
    ("edited", "text", "says"),
    [
        ("ATen/ops/relu.h", "// edited\n", "differs"),
        ("ATen/Functions.h", "// edited\n", "differs"),
        ("torch/csrc/autograd/generated/Functions.h", "// edited\n", "differs"),
        # text put around one header is an edit and no wrapper
        ("ATen/ops/relu.h", "// relu\n#define MORE\n", "differs"),
        ("ATen/ops/relu.h", "#define MORE\n// relu\n", "differs"),
        ("ATen/ops/stray.h", "", "is not made by its YAML"),
    ],
)
def test_an_edited_header_is_named(
    world: tuple[Base, Path], edited: str, text: str, says: str
) -> None:
    base, generated = world
    (base.include / edited).write_text(text)
    with pytest.raises(BaseRefusedError, match=f"torch/include/{edited} {says}") as caught:
        header_check.compare_headers(base, generated)
    assert caught.value.where == str(base.include / edited)
    assert caught.value.exit_code == 23 and "--from-source" in caught.value.next


def test_a_base_without_any_generated_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseRefusedError, match="holds none"):
        header_check.compare_headers(sample.base(tmp_path), tmp_path / "generated")
