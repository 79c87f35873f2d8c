"""The wheel's headers: those of the added operators compile alone, the others are as they were."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from subject import Archive, Subject

from torchfork.codegen.model import Manifest
from torchfork.native import toolchain
from torchfork.native.compile_steps import SUPPORT
from torchfork.upstream import abi
from torchfork.upstream.base import Base

INCLUDE = "torch/include/"


def added_headers(wheel: Archive, base_wheel: Archive) -> list[str]:
    new = wheel.members.keys() - base_wheel.members.keys()
    return sorted(name.removeprefix(INCLUDE) for name in new if name.endswith(".h"))


def test_headers_of_other_operators_are_byte_for_byte_the_bases(
    wheel: Archive, base_wheel: Archive
) -> None:
    operators = [n for n in base_wheel.members if n.startswith(f"{INCLUDE}ATen/ops/")]
    assert len(operators) > 1000
    for name in operators:
        theirs, ours = base_wheel.members[name], wheel.members[name]
        assert (ours.CRC, ours.file_size) == (theirs.CRC, theirs.file_size), name


def only_inserted(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """The lines that `after` has more than `before`; fails unless the others stand in order."""
    inserted, rest = [], iter(after)
    for line in before:
        for candidate in rest:
            if candidate == line:
                break
            inserted.append(candidate)
        else:
            pytest.fail(f"a line of the base's header is gone or has moved: {line!r}")
    return [*inserted, *rest]


def mentions(line: str, operators: Iterable[str]) -> bool:
    """Whether a line is about one of the operators, spelt as a function or as an autograd node."""
    plain = line.replace("_", "").lower()
    return any(name.replace("_", "") in plain for name in operators)


def test_headers_that_list_all_operators_gained_lines_and_lost_none(
    wheel: Archive, base_wheel: Archive, added: Manifest
) -> None:
    changed = [
        name
        for name, theirs in base_wheel.members.items()
        if name.startswith(INCLUDE) and wheel.members[name].CRC != theirs.CRC
    ]
    assert f"{INCLUDE}ATen/Functions.h" in changed
    # upstream's header of formulas' helpers includes that of the additions
    ours = {*added.base_names, "extfunctionsmanual"}
    for name in changed:
        new = only_inserted(base_wheel.text(name).splitlines(), wheel.text(name).splitlines())
        assert any(mentions(line, ours) for line in new), name
        included = [line for line in new if line.startswith("#include ")]
        assert all(mentions(line, ours) for line in included), name


# What headers for the inside of ATen (those of at::_ops and of single dispatch keys) take for
# granted, upstream's as ours; nobody includes them before it.
TAKEN_FOR_GRANTED = "#include <ATen/core/Tensor.h>\n"


def test_each_added_header_compiles_alone(
    subject: Subject, base: Base, base_wheel: Archive, tmp_path: Path
) -> None:
    """As the only include of a source, so that none leans on what another happens to include."""
    headers = added_headers(subject.wheel, base_wheel)
    # All of a kind have the includes that upstream's template gives them: one of each is compiled
    # alone. The rest in one: after Tensor.h they include nothing that could help the next one.
    alone = [name for name in headers if not name.startswith("ATen/ops/")]
    alone += [f"ATen/ops/sigmoid_ext{kind}.h" for kind in ("", "_native", "_meta")]
    assert set(alone) <= set(headers)
    sources = [f"#include <{name}>\n" for name in alone]
    rest = [f"#include <{name}>\n" for name in headers if name not in alone]
    sources.append(TAKEN_FOR_GRANTED + "".join(rest))
    include = subject.site / "torch" / "include"
    compiler = toolchain.find_cxx(subject.environment())
    for number, text in enumerate(sources):
        source = tmp_path / f"alone{number}.cpp"
        source.write_text(text)
        # Wheels from 2.8 on lack a header that upstream's own <ATen/functorch/...> include.
        functorch = "<ATen/functorch/" in text
        absent: list[str | Path] = ["-isystem", SUPPORT / "stand_ins"] if functorch else []
        subject.run([
            *compiler.split(), "-fsyntax-only", f"-std={abi.detect(base).cxx_standard}", "-w",
            "-isystem", include, "-isystem", include / "torch/csrc/api/include", *absent, source,
        ])  # fmt: skip


def test_headers_that_cuda_sources_of_a_user_include_are_there(wheel: Archive) -> None:
    """A CPU wheel carries the declarations for CUDA too, as upstream's do."""
    for operator in ("depthwise_conv2d_ext", "depthwise_conv2d_ext_backward"):
        assert f"{INCLUDE}ATen/ops/{operator}_cuda_dispatch.h" in wheel.members


def test_the_autograd_nodes_of_added_operators_are_declared(wheel: Archive) -> None:
    text = wheel.text(f"{INCLUDE}torch/csrc/autograd/generated/Functions.h")
    for node in ("DepthwiseConv2DExtBackward0", "DepthwiseConv2DExtBackwardBackward0"):
        assert f"struct TORCH_API {node} " in text


def test_headers_are_installed_where_the_archive_says(subject: Subject) -> None:
    path = subject.site / "torch" / "include" / "ATen" / "ops" / "gdh.h"
    assert path.read_bytes() == subject.wheel.read(f"{INCLUDE}ATen/ops/gdh.h")
