"""The manifest: what the additions are, told once, by torchgen's own objects, for everything later.

Runs in the process that has the base's torchgen on sys.path. Everything after it reads the JSON
that comes out, so that no other part of the tooling depends on a release's torchgen.

`build_manifest` gives {"operators": [...], "deprecated": [...]}. An operator's entry:
  name, overload, schema, base_name   as native_functions.yaml has them; base_name: no trailing _
  kind            functional | inplace | out | mutable | scratch | view
  generated       made by the codegen (autogen, a view's _copy), not written by anybody
  variants, python_module             as declared
  python_function, python_method      whether upstream's generator binds it to Python that way
  new_name, new_base_name             the base has no operator of this name, of this base_name
  view_of         the argument whose storage the result shares, for a non-mutating alias
  composite_implicit, differentiable  (an in-place operator is when its functional twin is)
  tensor_arguments                    __torch_function__ can be reached through an argument
  factory         takes dtype/layout/device/pin_memory and no tensor
  structseq       {"name", "fields", "pyi"} for named returns
  pyi_function, pyi_method            stub lines as upstream's own stub generator forms them; one
                                      string a signature, out= merged into its functional
An entry of "deprecated": name, schema, aten, python_module, pyi_function, pyi_method.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import BaseRefusedError
from .pyi import Stubs

BOUND_MODULES = (None, "nn", "fft", "linalg", "nested", "sparse", "special")
PRIVATE_PACKAGE = "_torchfork_packaged_autograd"


def load_binding_generator(packaged_dir: Path) -> ModuleType:
    """The base's gen_python_functions.py, imported under a name that nothing else uses.

    Its siblings hold the lists that hooks extend; under their usual name they would stay imported
    with the old contents in a process that goes on to generate.
    """
    directory = packaged_dir / "autograd"
    package = ModuleType(PRIVATE_PACKAGE)
    package.__path__ = [str(directory)]
    for name in [n for n in sys.modules if n.partition(".")[0] == PRIVATE_PACKAGE]:
        del sys.modules[name]
    sys.modules[PRIVATE_PACKAGE] = package
    try:
        return importlib.import_module(f"{PRIVATE_PACKAGE}.gen_python_functions")
    except ImportError as error:
        raise BaseRefusedError(
            "the base's Python binding generator cannot be imported",
            where=str(directory / "gen_python_functions.py"),
            why=str(error),
            next="use an unmodified official wheel or source tree",
        ) from error


def build_manifest(
    added: Sequence[Any],
    all_functions: Sequence[Any],
    differentiable: Collection[str],
    deprecated_added: list[dict[str, Any]],
    packaged_dir: Path,
) -> dict[str, Any]:
    """Describe the additions.

    added: the NativeFunctions that the base lacks, generated ones included.
    all_functions: every NativeFunction of base and additions.
    differentiable: names ('op' or 'op.overload') that have a derivative formula.
    deprecated_added: added entries in the form of deprecated.yaml ({"name", "aten"}).
    packaged_dir: the directory that holds autograd/ (torchgen/packaged, or tools of a source tree).
    """
    generator = load_binding_generator(packaged_dir)
    stubs = Stubs(generator, added, all_functions, deprecated_added)
    names = {str(f.func.name) for f in added}
    upstream = {str(f.func.name.name) for f in all_functions if str(f.func.name) not in names}
    operators = [_operator(f, generator, stubs, upstream, differentiable) for f in added]
    operators.sort(key=lambda op: (op["name"], op["overload"]))
    return {"operators": operators, "deprecated": stubs.deprecated_entries()}


def _operator(
    f: Any,
    generator: ModuleType,
    stubs: Stubs,
    upstream: set[str],
    differentiable: Collection[str],
) -> dict[str, Any]:
    """One operator's entry."""
    from torchgen.api.python import has_tensor_options

    base = f.func.name.name.base
    has_tensors = any(a.type.is_tensor_like() for a in f.func.arguments.flat_non_out)
    view_of = _view_of(f)
    variants = {variant.name for variant in f.variants}
    bound = generator.should_generate_py_binding(f) and f.python_module in BOUND_MODULES
    return {
        "name": str(f.func.name.name),
        "overload": f.func.name.overload_name,
        "schema": str(f.func),
        "base_name": base,
        "kind": "view" if view_of else f.func.kind().name,
        "generated": "generated" in f.tags,
        "variants": sorted(variants),
        "python_module": f.python_module,
        "python_function": bool(bound and "function" in variants),
        "python_method": bool(bound and "method" in variants and f.python_module is None),
        "new_name": str(f.func.name.name) not in upstream,
        "new_base_name": base not in {name.removesuffix("_") for name in upstream},
        "view_of": view_of,
        "composite_implicit": bool(f.has_composite_implicit_autograd_kernel),
        "differentiable": _is_differentiable(f, differentiable),
        "tensor_arguments": has_tensors,
        "factory": bool(has_tensor_options(f) and not has_tensors),
        "structseq": stubs.structseq(f) if bound else None,
        "pyi_function": stubs.lines(f, method=False),
        "pyi_method": stubs.lines(f, method=True),
    }


def _view_of(f: Any) -> str | None:
    """The argument that a result aliases without writing to it."""
    aliases: set[str] = set()
    for returned in f.func.returns:
        if returned.annotation is not None and not returned.annotation.is_write:
            aliases.update(returned.annotation.alias_set)
    for argument in f.func.arguments.flat_all:
        if argument.annotation is not None and aliases & set(argument.annotation.alias_set):
            return str(argument.name)
    return None


def _is_differentiable(f: Any, formulas: Collection[str]) -> bool:
    """Whether a formula names the operator, or the functional operator that it is a variant of."""
    twin = str(f.func.name).replace(str(f.func.name.name), f.func.name.name.base, 1)
    by_name = str(f.func.name) in formulas
    return by_name or (f.func.kind().name == "inplace" and twin in formulas)
