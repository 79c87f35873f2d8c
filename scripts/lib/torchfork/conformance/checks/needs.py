"""When an item does not apply to an operator: each gives the reason, or '' where it does."""

from __future__ import annotations

from .operators import Operator


def a_function(op: Operator) -> str:
    return "" if op.entry.python_function else "no Python function by its declaration"


def a_method(op: Operator) -> str:
    return "" if op.entry.python_method else "no method by its declaration"


def a_python_name(op: Operator) -> str:
    return "" if op.bound else "no Python name: upstream binds no operator of this name"


def a_torch_name(op: Operator) -> str:
    if op.entry.python_module not in (None, "special", "linalg", "fft", "sparse", "nested"):
        return f"bound in torch._C._{op.entry.python_module} only, which is private"
    return a_python_name(op)


def tensors_in(op: Operator) -> str:
    return "" if op.tensor_arguments else "takes no tensor"


def tensors_out(op: Operator) -> str:
    return "" if op.tensor_results or op.written else "gives no tensor"


def a_formula(op: Operator) -> str:
    if op.implicit:
        return "composite: differentiated as what it is made of"
    return "" if op.formula else "no derivative formula"


def a_derivative(op: Operator) -> str:
    if op.implicit:
        return tensors_in(op) or tensors_out(op)
    return "" if op.formula else "no derivative formula"


def known_sizes(op: Operator) -> str:
    return "its result depends on data (by its tag)" if op.data_dependent else ""


def no_numbers(op: Operator) -> str:
    """Graphs are of tensors."""
    return tensors_out(op) or known_sizes(op)


def takes_sizes(op: Operator) -> bool:
    """Whether an argument is a list of sizes, of any length, which must fit its tensors."""
    return any(str(a.type) == "List[int]" and not a.N for a in op.schema.arguments)


def an_overload_of_its_own(op: Operator) -> str:
    return "" if op.entry.new_base_name else "a new overload of an operator of upstream's"
