"""Twins of upstream's operators: the same kernel and the same formulas, under a name of our own.

A twin's formulas are upstream's text, read from the installed torch. In a graft they call the
helpers of scripts/lib/torchfork/support/functions_manual.cpp, upstream's call FunctionsManual.cpp.
`python twins.py ADDITIONS OUT` writes an additions directory that has those of ADDITIONS and the
twins; test_twins.py compares every gradient of a twin with that of its original.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

Args = tuple[Any, ...]
NAN, INF = float("nan"), float("inf")


def t(*shape: int, dtype: torch.dtype = torch.float64, low: float = 0.3) -> torch.Tensor:
    """A tensor to differentiate; values of both signs, none of them near 0."""
    values = torch.randn(shape, dtype=dtype)
    return (values + low * values.sgn()).requires_grad_()


def c(*shape: int) -> torch.Tensor:
    return t(*shape, dtype=torch.complex128)


def of(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def positive(*shape: int) -> torch.Tensor:
    return (torch.rand(shape, dtype=torch.float64) + 0.2).requires_grad_()


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values)


# Operator -> calls of it, with arguments made anew; a dict at the end is for those by keyword.
CASES: dict[str, Callable[[], list[Args]]] = {
    "add.Tensor": lambda: [(t(3), t(2, 1)), (t(3), c(3))],
    "addcmul": lambda: [(t(3), t(2, 3), c(3))],
    "sub.Tensor": lambda: [(t(3), c(2, 3))],
    "abs": lambda: [(t(3),), (c(3),)],
    "mul.Tensor": lambda: [(t(3), t(2, 1)), (t(3), c(3))],
    "mul.Scalar": lambda: [(t(3), 2.5), (c(3), 1j)],
    "div.Tensor": lambda: [(t(3), t(2, 1)), (t(3), c(3))],
    "div.Scalar": lambda: [(t(3), 2.5), (c(3), 2j)],
    "div.Tensor_mode": lambda: [
        (t(3), t(3), {"rounding_mode": "floor"}),
        (t(3), t(3), {"rounding_mode": None}),
    ],
    "pow.Tensor_Scalar": lambda: [(t(3), 3), (positive(3), 0.5), (c(3), 2), (t(3), 0)],
    "pow.Tensor_Tensor": lambda: [(positive(3), t(3)), (of(0, 0, 2), of(2, 0, 1.5)), (c(3), c(3))],
    "pow.Scalar": lambda: [(2.5, t(3)), (0, of(1, 2.5))],
    "angle": lambda: [(t(3),), (c(3),)],
    "sgn": lambda: [
        (t(3),),
        (c(3),),
        (torch.zeros(2, dtype=torch.complex128, requires_grad=True),),
    ],
    "atan2": lambda: [(t(3), t(2, 3))],
    "log1p": lambda: [(positive(3),), (c(3),)],
    "sinc": lambda: [(t(3),), (of(0, 1, 0.3),), (c(3),)],
    "rad2deg": lambda: [(t(3),)],
    "deg2rad": lambda: [(t(3),)],
    "masked_fill.Tensor": lambda: [(t(2, 3), index(1, 0, 1).bool(), t())],
    "clamp": lambda: [
        (t(9), -0.5, 0.5),
        (t(9), None, 0.5),
        (t(9), -0.5, None),
        (of(1, 2, NAN), 1, 2),
    ],
    "clamp.Tensor": lambda: [(t(9), t(9), t(9)), (t(9), t(9), None), (t(2, 9), None, t(9))],
    "sum.dim_IntList": lambda: [
        (t(2, 3), [1]),
        (t(2, 3), None),
        (t(2, 3), [-2, 1], True),
        (t(), [0]),
    ],
    "nansum": lambda: [(of(1, NAN, 2), [0]), (t(2, 3), [1], True)],
    "mean.dim": lambda: [(t(2, 3), [1]), (c(2, 3), [0], True), (t(2, 3), None)],
    "prod": lambda: [(t(2, 3),), (of(0, 2, 3),), (of(0, 0, 3),), (c(3),)],
    "prod.dim_int": lambda: [(t(2, 3), 1), (c(2, 3), -2, True), (of(0, 2), 0), (t(), 0)],
    "cumsum": lambda: [(t(2, 3), 1), (t(), 0)],
    "logsumexp": lambda: [(t(2, 3), [1]), (t(2, 3), [0, 1], True), (t(), [0])],
    "var.correction": lambda: [
        (t(2, 3), [1]),
        (c(2, 3), None),
        (t(2, 1), [1]),
        (t(4), [0], {"correction": 0}),
    ],
    "std.correction": lambda: [(t(2, 3), [1]), (t(2, 3), None), (of(1, 1, 1), [0])],
    "var_mean.correction": lambda: [(t(2, 3), [1]), (t(2, 3), None)],
    "std_mean.correction": lambda: [(t(2, 3), [1]), (c(2, 3), None)],
    "norm.Scalar": lambda: [(t(2, 3), p) for p in (0, 1, 2, 3, 1.5, 0.5, INF)] + [(c(3), 2)],
    "norm.ScalarOpt_dim": lambda: [(t(2, 3), p, [1]) for p in (None, 1, 3, INF)],
    "linalg_vector_norm": lambda: [
        *((t(2, 3), p, [1]) for p in (0, 1, 2, 3, 1.5, 0.5, INF, -INF)),
        (torch.zeros(3, dtype=torch.float64, requires_grad=True), 2),
        (c(2, 3), 2, None, True),
    ],
    "amax": lambda: [(t(2, 3), [1]), (of(1, 2, 2), []), (t(2, 3), [0], True)],
    "max": lambda: [(t(2, 3),), (of(1, 2, 2),), (of(1, NAN, NAN),)],
    "max.dim": lambda: [(t(2, 3), 1), (t(2, 3), 0, True), (t(), 0)],
    "sort": lambda: [(t(2, 3), 1)],
    "index.Tensor": lambda: [(t(3, 2), [index(0, 2, 0)]), (t(3, 2), [None, index(1, 1)])],
    "take": lambda: [(t(2, 3), index(0, 5, 0))],
    "gather": lambda: [(t(2, 3), 1, torch.tensor([[0, 0], [2, 1]]))],
    "squeeze": lambda: [(t(1, 3, 1),)],
    "squeeze.dim": lambda: [(t(1, 3), 0), (t(1, 3), 1), (t(), 0)],
    "squeeze.dims": lambda: [(t(1, 3, 1), [0, -1]), (t(1, 3), [0, 1])],
    "permute": lambda: [(t(2, 3, 4), [-1, 0, 1])],
    "roll": lambda: [(t(2, 3), [1, -1], [0, 1])],
    "repeat": lambda: [(t(2, 3), [2, 1, 3]), (t(), [2]), (t(2), [0])],
    "slice.Tensor": lambda: [(t(5), 0, 1, 5, 2), (t(5),), (t(2, 5), -1, -3)],
    "split.Tensor": lambda: [(t(5, 2), 2), (t(2, 4), 2, -1)],
    "split_with_sizes": lambda: [(t(5, 2), [1, 4])],
    "unbind.int": lambda: [(t(2, 3), 1)],
    "cat": lambda: [([t(2, 3), t(1, 3)],), ([t(2, 3), c(2, 1)], 1), ([t(0), t(2, 2)], -1)],
    "stack": lambda: [([t(2), c(2)], -1)],
    "constant_pad_nd": lambda: [(t(2, 3), [1, -1, 0, 2])],
    "mm": lambda: [(t(2, 3), t(3, 2)), (t(3, 2).detach().t().requires_grad_(), c(3, 2).real)],
    "addmm": lambda: [
        (t(2, 2), c(2, 3).imag, t(3, 2).detach().t().contiguous().t().requires_grad_())
    ],
}


def twin(name: str) -> str:
    """'twin_add.Tensor' of 'add.Tensor'."""
    return f"twin_{name}"


def write(source: Path, out: Path) -> None:
    """Write an additions directory that has those of `source` and every twin."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(source, out)
    functions, formulas = _upstream()
    parts: dict[str, list[str]] = {"native_functions": [], "derivatives": [], "kernels": []}
    for name in CASES:
        for part, text in zip(parts, _twin(functions[name], formulas[name]), strict=True):
            parts[part].append(text)
    for part in ("native_functions", "derivatives"):
        path = out / f"{part}_additions.yaml"
        own = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text("\n".join([own, *parts[part]]), encoding="utf-8")
    kernels = out / "aten_src" / "native" / "Twins.cpp"
    kernels.parent.mkdir(parents=True, exist_ok=True)
    kernels.write_text(_SOURCE % "\n".join(parts["kernels"]), encoding="utf-8")


_SOURCE = """\
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

namespace at::native {

static Tensor own(const Tensor& t) {
  return t.clone();
}

static std::vector<Tensor> own(const std::vector<Tensor>& views) {
  std::vector<Tensor> owned;
  for (const auto& view : views) {
    owned.push_back(view.clone());
  }
  return owned;
}

%s
} // namespace at::native
"""


def _upstream() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """torchgen's functions by name, and the entries of derivatives.yaml by name."""
    from torchgen.gen import parse_native_yaml

    packaged = Path(torch.__file__).parents[1] / "torchgen" / "packaged"
    native = packaged / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    text = (packaged / "autograd" / "derivatives.yaml").read_text(encoding="utf-8")
    entries = yaml.safe_load(text)
    functions = {str(f.func.name): f for f in parsed.native_functions}
    return functions, {entry["name"].partition("(")[0]: entry for entry in entries}


def _twin(f: Any, entry: dict[str, Any]) -> Iterator[str]:
    """The declaration, the formulas and the kernel of one twin."""
    from torchgen import local
    from torchgen.api.types import NativeSignature
    from torchgen.model import FunctionSchema

    is_view = f.func.returns[0].annotation is not None
    name = str(f.func.name)
    schema = re.sub(r"\(a( -> \*)?\)", "", twin(str(f.func)))
    symint = "SymInt" in schema
    kernel = twin(name).replace(".", "_") + ("_symint" if symint else "")
    yield yaml.safe_dump(
        [{"func": schema, "dispatch": {"CompositeExplicitAutograd": kernel}}], width=1000
    )
    fields = {**entry, **entry.get("dispatch", {}).get("Default", {})}
    fields.pop("dispatch", None)
    yield yaml.safe_dump([{**fields, "name": schema}], width=1000)
    signature = NativeSignature(FunctionSchema.parse(schema), symint=symint)
    with local.parametrize(
        use_const_ref_for_mutable_tensors=True, use_ilistref_for_tensor_lists=False
    ):
        arguments = ", ".join(binding.name for binding in signature.arguments())
        call = f"at::_ops::{f.func.name.unambiguous_name()}::call({arguments})"
        body = f"own({call})" if is_view else call
        yield f"{signature.decl(name=kernel)} {{\n  return {body};\n}}\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
