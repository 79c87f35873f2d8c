"""The items of the list: what each checks, and which operators it applies to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from . import cpp, graphs, kernels, python_api, tools, transforms
from .bench import Bench, Check, NotApplicable
from .operators import Operator

Need = Callable[[Operator], str]  # why an item does not apply, '' where it does


def need(holds: Callable[[Operator], object], why: str) -> Need:
    """An item applies where this holds, and does not for the reason given."""
    return lambda op: "" if holds(op) else why


a_function = need(lambda op: op.entry.python_function, "no Python function by its declaration")
a_method = need(lambda op: op.entry.python_method, "no method by its declaration")
a_python_name = need(lambda op: op.bound, "no Python name: upstream binds no operator of this name")
tensors_in = need(lambda op: op.tensor_arguments, "takes no tensor")
tensors_out = need(lambda op: op.tensor_results or op.written, "gives no tensor")
known_sizes = need(lambda op: not op.data_dependent, "its result depends on data (by its tag)")
an_overload_of_its_own = need(
    lambda op: op.entry.new_base_name, "a new overload of an operator of upstream's"
)
formula = need(lambda op: op.formula, "no derivative formula")


def a_torch_name(op: Operator) -> str:
    """Of the modules below torch._C some are public by another name."""
    if op.entry.python_module not in (None, "special", "linalg", "fft", "sparse", "nested"):
        return f"bound in torch._C._{op.entry.python_module} only, which is private"
    return a_python_name(op)


def a_formula(op: Operator) -> str:
    """The operator itself, and not what it is made of, is differentiated."""
    return "composite: differentiated as what it is made of" if op.implicit else formula(op)


def a_derivative(op: Operator) -> str:
    """A formula of its own, or those of what it is made of."""
    return tensors_in(op) or tensors_out(op) if op.implicit else formula(op)


def no_numbers(op: Operator) -> str:
    """Graphs are of tensors."""
    return tensors_out(op) or known_sizes(op)


def traceable(op: Operator) -> str:
    """Upstream's tracer refuses std::array, for its own operators too (torch/csrc/jit/tracer.h)."""
    masks = [a.name for a in op.schema.arguments if str(a.type) == "List[bool]" and a.N]
    return f"upstream's tracer takes no bool[N] ({', '.join(masks)})" if masks else ""


@dataclass(frozen=True)
class Item:
    """An item of the list.

    title: as the table has it; once: whether it is the same on every device.
    task: what must have been done before for all operators at once.
    """

    title: str
    check: Check
    needs: tuple[Need, ...] = ()
    once: bool = False
    task: str = ""

    def run(self, op: Operator, device: str, bench: Bench) -> None:
        """Check one operator on one device; raises CheckFailed, NotApplicable or Unavailable."""
        for need in self.needs:
            if reason := need(op):
                raise NotApplicable(reason)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those that matter, a check looks for itself
            self.check(op, device, bench)


# In the order of the table.
ITEMS = (
    Item("schema in torch.ops.aten", python_api.check_schema),
    Item("Python builtin", python_api.check_builtin, (a_function,)),
    Item("Tensor method", python_api.check_method, (a_method,)),
    Item("signature", python_api.check_signature, (a_python_name,), once=True),
    Item(
        "__torch_function__",
        python_api.check_torch_function,
        (a_python_name, tensors_in),
        once=True,
    ),
    Item("__torch_dispatch__", python_api.check_torch_dispatch, (tensors_in,)),
    Item("torch.overrides", python_api.check_overrides, (a_torch_name, tensors_in), once=True),
    Item("C++ extension: at::, tensor.", cpp.called_from("extension"), task="extension"),
    Item("C++ from CMake", cpp.called_from("cmake"), once=True, task="cmake"),
    Item("autograd node by its name", transforms.check_node, (a_formula,), once=True),
    Item("gradcheck", transforms.check_first, (a_derivative,)),
    Item("gradgradcheck", transforms.check_second, (a_derivative,)),
    Item("forward-mode AD", transforms.check_forward, (a_derivative,)),
    Item("batched gradients", transforms.check_batched, (a_derivative, no_numbers)),
    Item("opcheck", transforms.check_opcheck),
    Item("FakeTensor, meta: same strides", transforms.check_fake, (tensors_out, known_sizes)),
    Item("functionalization", transforms.check_functionalized, (tensors_in, no_numbers)),
    Item("vmap: a batch rule", transforms.check_vmap, (tensors_in, tensors_out, known_sizes)),
    Item("SymInt shapes: one graph", graphs.check_symbolic, (no_numbers, tensors_in)),
    Item(
        "torch.compile: aot_eager", graphs.compiled_with("aot_eager", 4), (no_numbers, tensors_in)
    ),
    Item("torch.compile: inductor", graphs.compiled_with("inductor", 1), (no_numbers, tensors_in)),
    Item("torch.export", graphs.check_export, (no_numbers, tensors_in)),
    Item("AOTInductor package", graphs.check_package, (no_numbers, tensors_in), task="packages"),
    Item("torch.jit.script", graphs.check_script, (tensors_in,)),
    Item("torch.jit.trace", graphs.check_trace, (tensors_in, tensors_out, traceable)),
    Item("torch.fx.symbolic_trace", graphs.check_fx, (a_python_name, tensors_in), once=True),
    Item("autocast", kernels.check_autocast, (a_python_name, tensors_in, tensors_out)),
    Item("channels_last", kernels.check_channels_last, (tensors_in, tensors_out)),
    Item("non-contiguous inputs", kernels.check_noncontiguous, (tensors_in,)),
    Item("empty inputs", kernels.check_empty, (tensors_in,)),
    Item("deterministic mode", kernels.check_deterministic, (tensors_out,)),
    Item("dtypes", kernels.check_runs, (tensors_in,)),
    Item("OpInfo in op_db", kernels.check_info, (a_python_name, an_overload_of_its_own)),
    Item("out=", python_api.out_variants(generated=False)),
    Item("autogen: out overload", python_api.out_variants(generated=True)),
    Item("in-place", python_api.check_in_place),
    Item("docstring in help()", tools.check_docstring, (a_torch_name,), once=True),
    Item(
        "type stubs: mypy", tools.type_checked_by("mypy"), (a_python_name,), once=True, task="mypy"
    ),
    Item(
        "type stubs: pyright",
        tools.type_checked_by("pyright"),
        (a_python_name,),
        once=True,
        task="pyright",
    ),
    Item("documentation page", tools.check_page, (a_torch_name,), once=True),
    Item("error messages", tools.check_errors),
    Item("profiler name", tools.check_profiler),
    Item("FLOP counter", tools.check_flops, (tensors_in,)),
    Item("pickle and deepcopy", tools.check_pickle, (a_python_name,), once=True),
    Item("CUDA gives what CPU gives", tools.check_cuda_as_cpu, (tensors_out,)),
    Item("CUDA graphs", tools.check_graphs, (tensors_in, tensors_out, known_sizes)),
)
BY_TITLE = {item.title: item for item in ITEMS}
