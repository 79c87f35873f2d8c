"""What each of upstream's lists of operators says about the additions: manifest in, lines out."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..codegen import templates
from ..codegen.model import Manifest, Operator, Variant
from ..errors import AdditionsError
from ..upstream.python_names import defines, has_all, parse


def without_out_variant(
    schemas: Sequence[str] | None, manifest: Manifest, upstream: str
) -> list[str]:
    """FUNCTIONAL_OPS_THAT_CANNOT_GET_AN_OUT_VARIANT: operators that return no tensor.

    torchgen refuses to parse such an operator, unless it is composite, before there is a manifest;
    so this goes by the text of its schema: `schemas`, or those of the manifest.
    """
    names = set()
    for schema in [op.schema for op in manifest.operators] if schemas is None else schemas:
        name, _, rest = schema.partition("(")
        arguments, _, returns = rest.rpartition("->")
        if "Tensor" not in returns and not re.search(r"\*,.*!\)", arguments):
            names.add(name.strip())
    return [f'"{name}",' for name in sorted(names)]


def view_functions(manifest: Manifest, upstream: str) -> list[str]:
    """VIEW_FUNCTIONS: results that share an argument's storage. RETURNS_VIEWS_OF_INPUT follows.

    The list goes by base name, so all operators of one name are views or none is.
    """
    views: dict[str, str] = {}
    for op in manifest.operators:
        if op.view_of is not None and not re.search(rf'^    "{op.base_name}"', upstream, re.M):
            _refuse_mixed_views(manifest, op)
            views[op.base_name] = op.view_of
    return [f'"{name}": "{argument}",' for name, argument in sorted(views.items())]


def whole_view_replay(manifest: Manifest, upstream: str) -> list[str]:
    """SINGLE_OUTPUT_VIEW_REPLAY (2.15 on): views that give several results at once.

    torchgen refuses one that the table lacks. None stands for what older releases do with all of
    them: call the whole operator again and take one of its results.
    """
    if "SINGLE_OUTPUT_VIEW_REPLAY" not in upstream:
        return []
    several = [
        op.schema.partition("(")[0]
        for op in manifest.operators
        if op.view_of is not None and "[]" in op.schema.rpartition("->")[2]
    ]
    return [f'"{name}": None,' for name in sorted(several)]


def _refuse_mixed_views(manifest: Manifest, view: Operator) -> None:
    """Refuse a view that shares its name with an operator that is none."""
    others = [
        op.schema
        for op in manifest.operators
        if op.base_name == view.base_name
        and op.view_of != view.view_of
        and op.kind not in ("inplace", "out")
        and not op.composite_implicit
    ]
    if others or not (view.new_base_name or view.composite_implicit):
        raise AdditionsError(
            f"'{view.schema}' is a view, and other operators named {view.base_name} are not",
            where="native_functions_additions.yaml",
            why="autograd looks views up by name, without the overload"
            + (f"; not a view: {others[0]}" if others else ""),
            next="give the view a name of its own",
        )


def complex_gradients(manifest: Manifest, upstream: str) -> list[str]:
    """GRADIENT_IMPLEMENTED_FOR_COMPLEX: every operator with a formula.

    Autograd would refuse complex results before any kernel runs. Whether a kernel takes complex
    input is the kernel's to say, so a formula that holds for reals only belongs to a kernel that
    refuses complex input. Overloads of an existing name keep what upstream says of that name. The
    copying variant of a view has the view's formula without an entry of its own.
    """
    new = [op for op in manifest.operators if op.new_base_name]
    names = {op.base_name for op in new if op.differentiable}
    copies = {f"{op.base_name}_copy" for op in new if op.differentiable and op.view_of}
    names |= copies & {op.base_name for op in new}
    return [f'"{name}",' for name in sorted(names)]


def testing_overrides(manifest: Manifest, upstream: str) -> list[str]:
    """get_testing_overrides: functions and methods that a tensor argument can override."""
    lines = []
    for op in functions(manifest):
        if _has_tensor(manifest, op.name) and not mentions(upstream, op, ":"):
            parameters = signature(manifest, op.name, "function")
            lines.append(f"{expression(op)}: {_constant(parameters)},")
    for name in methods(manifest):
        if f"Tensor.{name}:" not in upstream:
            parameters = signature(manifest, name, "method")
            lines.append(f"Tensor.{name}: {_constant(parameters)},")
    return lines


def _constant(parameters: str) -> str:
    return f"lambda {parameters}: -1" if parameters else "lambda: -1"


def ignored_functions(manifest: Manifest, upstream: str) -> list[str]:
    """get_ignored_functions: nothing in their arguments could carry __torch_function__."""
    return [
        f"{expression(op)},"
        for op in functions(manifest)
        if not _has_tensor(manifest, op.name) and not mentions(upstream, op, ",")
    ]


def _has_tensor(manifest: Manifest, name: str) -> bool:
    return any(op.tensor_arguments for op in manifest.operators if op.name == name)


def in_graph_functions(manifest: Manifest, upstream: str) -> list[str]:
    """Dynamo's table of C functions that go into the graph; a name twice in it is an error."""
    names = [f'"{expression(op)}"' for op in functions(manifest)]
    names = [name for name in names if name not in upstream]
    if not names:
        return []
    return [
        "torch_c_binding_in_graph_functions.update(",
        "    dict.fromkeys(",
        "        [",
        *(f"            {name}," for name in names),
        "        ],",
        "        TorchInGraphFunctionVariable,",
        "    )",
        ")",
    ]


def device_constructors(manifest: Manifest, upstream: str) -> list[str]:
    """Functions that `with torch.device(...)` and set_default_device give a device to."""
    factories = {op.name for op in manifest.operators if op.factory}
    return [
        f"{expression(op)},"
        for op in functions(manifest)
        if op.name in factories and not mentions(upstream, op, ",")
    ]


def side_effects(manifest: Manifest, upstream: str) -> list[str]:
    """_side_effectful_functions: operators that return nothing and write to no argument.

    All that such an operator does is to check or to print: dead code elimination would drop it from
    every compiled graph.
    """
    return [
        f"_ops.aten.{op.name}.{op.overload or 'default'},"
        for op in manifest.operators
        if op.schema.rpartition("->")[2].strip() == "()" and "!" not in op.schema
    ]


def added_overloads(variable: str, explicit: str, manifest: Manifest, upstream: str) -> list[str]:
    """Statements that take added overloads of upstream's operators out of a list of overloads.

    Upstream registers decompositions, meta functions and lowerings for a name, meaning all of its
    overloads; an added one takes other arguments, which that code does not know.
    explicit: whether an overload _f was named itself, and not brought along by its packet.
    """
    names = [f'"aten::{op.qualified}",' for op in manifest.operators if not op.new_name]
    if not names:
        return []
    kept = f"{explicit} or _f.name() not in _added"
    return [
        "_added = {",
        *(f"    {name}" for name in names),
        "}",
        f"{variable} = [_f for _f in {variable} if {kept}]",
    ]


def module_names(module: str, home: str, manifest: Manifest, upstream: str) -> list[str]:
    """Public names of a python_module's operators; a name that the module has already stays."""
    public = {
        public_name(op): op.name
        for op in functions(manifest)
        if op.python_module == module and not op.name.startswith("_")
    }
    new = {n: o for n, o in sorted(public.items()) if not defines(upstream, n)}
    lines = [f"{name} = {home}.{operator}" for name, operator in new.items()]
    if new and has_all(upstream):
        lines.append(f"__all__ += {list(new)!r}")
    return lines


def includes(headers: Sequence[str], _manifest: Manifest, _upstream: str) -> list[str]:
    """#include lines for headers of helpers that derivative formulas call."""
    return [f"#include <{header}>" for header in headers]


def symbolic_meta(manifest: Manifest, _upstream: str) -> list[str]:
    """The generated file that wraps Meta kernels, into a file that is compiled anyway."""
    if not manifest.operators:
        return []
    return [f'#include "{templates.SYMBOLIC_IN_TREE}/{templates.SYMBOLIC_SOURCE}"']


# How Python reaches an operator.


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
    function = parse(hint).body[0]
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
