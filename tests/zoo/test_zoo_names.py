"""Names that additions must not take: every attribute of this torch is read from its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional

from torchfork.upstream import python_names

SITE = Path(torch.__file__).parents[1]
OPERATORS = {s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas()}
PLACES = {
    "torch": (torch, torch._C._VariableFunctions), "Tensor": (torch.Tensor, torch._C.TensorBase),
    "nn": (torch.nn.functional, torch._C._nn), "special": (torch.special, torch._C._special),
    "linalg": (torch.linalg, torch._C._linalg), "fft": (torch.fft, torch._C._fft),
    "nested": (torch.nested, torch._C._nested), "sparse": (torch.sparse, torch._C._sparse),
}  # fmt: skip


@pytest.fixture(scope="module")
def known() -> dict[str, frozenset[str]]:
    def read(name: str) -> str | None:
        path = SITE / name
        return path.read_text("utf-8") if path.is_file() else None

    compiled = [SITE / "torch/lib/libtorch_python.so"]
    return python_names.attributes(read, SITE, compiled, SITE / "torch/include")


@pytest.mark.parametrize("home", PLACES)
def test_an_operator_can_take_no_name_that_torch_has(
    home: str, known: dict[str, frozenset[str]]
) -> None:
    def is_seen(name: str) -> bool:
        # capitalised names are refused whatever they are
        return name in known[home] | OPERATORS or f"{home}_{name}" in OPERATORS or name[0].isupper()

    there = {name for place in PLACES[home] for name in dir(place)}
    assert len(there) > 10
    assert sorted(name for name in there if not is_seen(name)) == []
