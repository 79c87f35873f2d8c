"""Meta kernels of added operators that know symbolic shapes where TensorIterator does not.

Runs in the process that has the tree's torchgen on sys.path.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

SOURCE = "python_symbolic_meta.cpp"  # with the bindings: no one traces without Python
HEADER = "symbolic_meta.h"  # what it includes, from the same directory
# Where both are in a source tree, and the file of libtorch_python that includes the first.
IN_TREE = "torch/csrc/autograd/additions"
INCLUDED_BY = "torch/csrc/autograd/init.cpp"

_TEMPLATE = """\
// What tracing with dynamic shapes needs of the added operators' Meta kernels; see symbolic_meta.h.
#include "%(header)s"

%(includes)s

TORCH_LIBRARY_IMPL(aten, Meta, m) {
%(registrations)s
}
"""


def symbolic_meta_source(functions: Sequence[Any], indices: Mapping[Any, Any]) -> str:
    """The text of SOURCE for the given NativeFunctions; without an operator for none of them.

    indices: torchgen's BackendIndex of each dispatch key.
    """
    meta = indices[importlib.import_module("torchgen.model").DispatchKey.Meta]
    chosen = [f for f in functions if _has_meta_kernel(f, meta) and _takes_tensors(f)]
    includes = sorted({f"#include <ATen/ops/{f.root_name}_meta_dispatch.h>" for f in chosen})
    return _TEMPLATE % {
        "header": HEADER,
        "includes": "\n".join(includes),
        "registrations": "\n".join(_registration(f, meta) for f in chosen),
    }


def _has_meta_kernel(f: Any, meta: Any) -> bool:
    structured = f.structured or f.structured_delegate is not None
    return f.namespace == "aten" and (structured or meta.has_kernel(f))


def _takes_tensors(f: Any) -> bool:
    return any(argument.type.is_tensor_like() for argument in f.func.arguments.flat_all)


def _registration(f: Any, meta: Any) -> str:
    """Hand the generated kernel to the one that knows symbolic shapes."""
    signatures = importlib.import_module("torchgen.api.types").CppSignatureGroup
    settings_of = importlib.import_module("torchgen.context").native_function_manager
    kernel = meta.get_kernel(f)
    with settings_of(f):
        group = signatures.from_native_function(f, method=False)
        chosen = group.faithful_signature or group.signature
        if kernel is not None and kernel.supports_symint():
            chosen = group.symint_faithful_signature or group.symint_signature or chosen
        name = f"&at::meta::{chosen.name()}"
        return f'  torchfork::symbolic_meta<{chosen.type()}, {name}>(m, "{f.func.name}");'
