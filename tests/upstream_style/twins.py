"""Twins of upstream's operators: the same kernel and the same formulas, under a name of our own.

A twin's formulas are upstream's text, read from the official wheel. In a graft they call the
helpers of scripts/lib/torchfork/support/functions_manual.cpp, upstream's call FunctionsManual.cpp.
`python twins.py OUT ADDITIONS...` writes an additions directory that has those of all ADDITIONS and
the twins; test_twins.py compares every gradient of a twin with that of its original.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from torchfork.upstream import fetch, pins, wheel
from torchfork.upstream.base import probe
from torchfork.util import cache

TWINS = (
    "add.Tensor", "addcmul", "sub.Tensor", "abs", "mul.Tensor", "mul.Scalar", "div.Tensor",
    "div.Scalar", "div.Tensor_mode", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "angle", "sgn", "atan2", "log1p", "sinc", "rad2deg", "deg2rad", "masked_fill.Tensor", "clamp",
    "clamp.Tensor", "sum.dim_IntList", "nansum", "mean.dim", "prod", "prod.dim_int", "cumsum",
    "logsumexp", "var.correction", "std.correction", "var_mean.correction", "std_mean.correction",
    "norm.Scalar", "norm.ScalarOpt_dim", "linalg_vector_norm", "amax", "max", "max.dim", "sort",
    "index.Tensor", "take", "gather", "squeeze", "squeeze.dim", "squeeze.dims", "permute", "roll",
    "repeat", "slice.Tensor", "split.Tensor", "split_with_sizes", "unbind.int", "cat", "stack",
    "constant_pad_nd", "mm", "addmm",
)  # fmt: skip


def twin(name: str) -> str:
    """'twin_add.Tensor' of 'add.Tensor'."""
    return f"twin_{name}"


def write(out: Path, sources: Sequence[Path]) -> None:
    """Write an additions directory that has those of all sources and every twin."""
    shutil.rmtree(out, ignore_errors=True)
    functions, formulas = _upstream()
    declared, differentiated, kernels = zip(
        *(_twin(functions[name], formulas[name]) for name in TWINS), strict=True
    )
    for source in sources:
        shutil.copytree(source, out, dirs_exist_ok=True)
    for name, more in (("native_functions", declared), ("derivatives", differentiated)):
        file = f"{name}_additions.yaml"
        own = [(source / file).read_text(encoding="utf-8") for source in sources]
        (out / file).write_text("\n".join([*own, *more]), encoding="utf-8")
    path = out / "aten_src" / "native" / "Twins.cpp"
    path.write_text(_SOURCE % "\n".join(kernels), encoding="utf-8")


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
    opening = wheel.Opening(probe(headers=False), pins.load(), cache.directory())
    base = wheel.open_wheel(fetch.fetch_wheel(opening.pins.get(), opening), opening)
    sys.path.insert(0, str(base.root))
    from torchgen.gen import parse_native_yaml

    native = base.packaged / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    text = (base.packaged / "autograd" / "derivatives.yaml").read_text(encoding="utf-8")
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
    write(Path(sys.argv[1]), list(map(Path, sys.argv[2:])))
