"""What native/cpu is compiled for, on each processor and of each base."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.errors import BaseRefusedError
from torchfork.upstream.abi import AVX, DEFAULT_ONLY, Capabilities, find_capabilities
from torchfork.upstream.base import Base

OLD_ARM = """#if defined(HAVE_SVE256_CPU_DEFINITION) && defined(HAVE_ARM_BF16_CPU_DEFINITION)
  static TORCH_API FnPtr DEFAULT;
  static TORCH_API FnPtr AVX2;
  static TORCH_API FnPtr SVE256;
"""
NEW_ARM = """#ifdef HAVE_SVE_CPU_DEFINITION
  static TORCH_API FnPtr DEFAULT;
  static TORCH_API FnPtr SVE128;
  static TORCH_API FnPtr SVE256;
"""
CHOOSER = b"_ZN2at6native16DispatchStubImpl12get_call_ptrEN3c1010DeviceTypeEPv"


def a_base(tmp_path: Path, header: str, functions: int) -> Base:
    """A base whose dispatcher chooses among so many functions."""
    base = sample.base(tmp_path / "base", version="9.1.0+cpu")
    stub = base.include / "ATen/native/DispatchStub.h"
    stub.parent.mkdir(parents=True, exist_ok=True)
    stub.write_text(header)
    base.torch_cpu.parent.mkdir(parents=True, exist_ok=True)
    other = CHOOSER.replace(b"12get_call_ptr", b"16try_get_call_ptr") + b"S4_" * 7
    mine = CHOOSER + b"S4_" * (functions - 1)
    base.torch_cpu.write_bytes(b"\0".join([b"\x7fELF", other, mine, b"end"]))
    return base


@pytest.mark.parametrize("machine", ["x86_64", "AMD64"])
def test_x86_has_avx_whatever_the_base_says(tmp_path: Path, machine: str) -> None:
    """Its wheels need not be there: a check compiles with other machines' headers, too."""
    assert find_capabilities(sample.base(tmp_path, version="9.1.0"), machine) == AVX


@pytest.mark.parametrize(
    ("header", "functions", "found"),
    [
        (
            OLD_ARM,
            2,
            Capabilities(
                ("DEFAULT", "SVE256"),
                ("HAVE_ARM_BF16_CPU_DEFINITION", "HAVE_SVE256_CPU_DEFINITION"),
            ),
        ),
        (
            NEW_ARM,
            3,
            Capabilities(("DEFAULT", "SVE128", "SVE256"), ("HAVE_SVE_CPU_DEFINITION",)),
        ),
        (NEW_ARM, 1, DEFAULT_ONLY),  # built without SVE, as macOS's
    ],
)
def test_arm_has_what_the_base_was_built_with(
    tmp_path: Path, header: str, functions: int, found: Capabilities
) -> None:
    assert find_capabilities(a_base(tmp_path, header, functions), "aarch64") == found


def test_a_base_without_the_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseRefusedError, match="lacks a file"):
        find_capabilities(sample.base(tmp_path, version="9.1.0"), "aarch64")


@pytest.mark.parametrize(
    ("header", "functions"),
    [(NEW_ARM, 2), (NEW_ARM + "  static TORCH_API FnPtr SVE512;\n", 4)],
    ids=["header and library differ", "unknown"],
)
def test_a_base_with_other_capabilities_is_refused(
    tmp_path: Path, header: str, functions: int
) -> None:
    with pytest.raises(BaseRefusedError) as refused:
        find_capabilities(a_base(tmp_path, header, functions), "aarch64")
    assert f"among {functions} versions" in str(refused.value)
    assert "DispatchStub.h" in str(refused.value.where)
    assert "abi.py" in str(refused.value.next)


def test_other_processors_have_the_default_only(tmp_path: Path) -> None:
    assert find_capabilities(a_base(tmp_path, NEW_ARM, 3), "riscv64") == DEFAULT_ONLY
