"""How Python reaches an added operator: expression, public name, a lambda of its signature."""

from __future__ import annotations

import ast
import re

from ...codegen.model import Manifest, Operator, Variant


def functions(manifest: Manifest) -> list[Operator]:
    """One entry a Python function name, sorted: the first of its overloads."""
    by_name: dict[str, Operator] = {}
    for op in manifest.operators:
        if op.python_function:
            by_name.setdefault(op.name, op)
    return [by_name[name] for name in sorted(by_name)]


def methods(manifest: Manifest) -> list[str]:
    """The names of new Tensor methods, sorted."""
    return sorted({op.name for op in manifest.operators if op.python_method and op.new_name})


def expression(op: Operator) -> str:
    """Where the builtin lives: torch.x, torch._C._nn.x, torch._C._special.special_x."""
    module = op.python_module
    return f"torch.{op.name}" if module is None else f"torch._C._{module}.{op.name}"


def public_name(op: Operator) -> str:
    """The name in torch.<module>: special_x is torch.special.x, as upstream has it."""
    return op.name.removeprefix(f"{op.python_module}_")


def mentions(text: str, op: Operator, after: str) -> bool:
    """Whether upstream's text has the operator already, followed by a character of `after`."""
    names = [expression(op)]
    if op.python_module is not None:
        module = "nn.functional" if op.python_module == "nn" else op.python_module
        names.append(f"torch.{module}.{public_name(op)}")
    return any(re.search(rf"\b{re.escape(name)}[{after}]", text) for name in names)


def signature(manifest: Manifest, name: str, variant: Variant) -> str:
    """Parameters, without types, of the longest signature that stubs have for a name."""
    named = [op for op in manifest.operators if op.name == name]
    hints = [hint for op in named for hint in op.pyi(variant)]
    parsed = [bare_parameters(hint) for hint in hints]
    plain = [parameters for parameters in parsed if not re.match(r"(self, )?\*\w", parameters)]
    return max(plain or parsed or ["*args, **kwargs"], key=lambda p: p.count(","))


def bare_parameters(hint: str) -> str:
    """'input, *, out=None' of 'def f(input: Tensor, *, out: Tensor = None) -> Tensor: ...'."""
    function = ast.parse(hint).body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    if arguments.vararg is not None:
        arguments.vararg.annotation = None
    arguments.defaults = [_runtime_default(default) for default in arguments.defaults]
    arguments.kw_defaults = [d if d is None else _runtime_default(d) for d in arguments.kw_defaults]
    return ast.unparse(arguments)


def _runtime_default(default: ast.expr) -> ast.expr:
    """A bare name in a stub (contiguous_format, inf) is an attribute of torch at run time."""
    if isinstance(default, ast.Name):
        return ast.Attribute(ast.Name("torch", ast.Load()), default.id, ast.Load())
    return default
