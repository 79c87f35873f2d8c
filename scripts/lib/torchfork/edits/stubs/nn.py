"""Stubs of python_module nn: the one module whose function stubs upstream lists by hand."""

from __future__ import annotations

import builtins

from ...codegen.model import Manifest
from ..python_source import annotation_names, defines, has_all
from .collect import function_signatures
from .edit import signature_lines

STUB_TYPES = "torch.types"
BUILTINS = {"torch", *dir(builtins)}
# Where the names in generated signatures come from. Upstream's own signatures in these stubs use
# some of them, so the files import only those; importing a name twice does no harm. A name that
# is not here is one that a later release put among its other stub types (PySymType in 2.15).
SOURCES = {
    "torch": "contiguous_format Generator inf memory_format per_tensor_affine SymInt Tensor",
    "torch._prims_common": "DeviceLikeType",
    STUB_TYPES: "_bool _complex _device _dtype _float _int _layout _qscheme _size Number",
    "typing": "Any Dict List Literal Optional Sequence Tuple Union overload",
}


def nn_stub(manifest: Manifest, upstream: str) -> list[str]:
    """Lines for the template of torch/_C/_nn.pyi: new names with the imports that they need."""
    signatures = function_signatures(manifest, "nn")
    new = [s for n, s in sorted(signatures.items()) if s.new and not defines(upstream, n)]
    lines = imports([hint for found in new for hint in found.hints])
    for found in new:
        lines += signature_lines(found.hints, overloaded=len(found.hints) > 1)
    return lines


def imports(hints: list[str]) -> list[str]:
    """Import lines for every name that signatures use, and overload."""
    used = set[str]().union(*(annotation_names(hint) for hint in hints)) - BUILTINS
    sources = {module: names.split() for module, names in SOURCES.items()}
    known = {name for names in sources.values() for name in names}
    sources[STUB_TYPES] += sorted(used - known)
    lines = ["import torch"] if "torch" in used else []
    for module, names in sources.items():
        wanted = [name for name in names if name in used or (hints and name == "overload")]
        lines += [f"from {module} import {', '.join(wanted)}"] if wanted else []
    return lines


def functional_stub(manifest: Manifest, upstream: str) -> list[str]:
    """Lines for torch/nn/functional.pyi or its template: re-exports of new names."""
    names = [
        name
        for name, found in sorted(function_signatures(manifest, "nn").items())
        if found.new and not name.startswith("_") and not defines(upstream, name)
    ]
    lines = [f"from torch._C._nn import {name} as {name}" for name in names]
    if names and has_all(upstream):
        lines.append(f"__all__ += {names!r}")
    return lines
