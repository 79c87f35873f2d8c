"""Every list that upstream keeps by hand: its file in each lane, and the line it is placed by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...codegen import symbolic
from ...util.blocks import END_OF_FILE, Anchor
from ..stubs.nn import functional_stub, nn_stub
from . import lists
from .hook import ListEdit

AUTOGRAD = {"graft": "torchgen/packaged/autograd", "source": "tools/autograd"}
CSRC = {"graft": "torch/include/torch/csrc", "source": "torch/csrc"}
# python_module -> (file that holds its public names, the builtin module as that file calls it)
MODULES = {
    "nn": ("torch/nn/functional.py", "torch._C._nn"),
    "special": ("torch/special/__init__.py", "_special"),
    "linalg": ("torch/linalg/__init__.py", "_linalg"),
    "fft": ("torch/fft/__init__.py", "_fft"),
    "nested": ("torch/nested/__init__.py", "_nested"),
    "sparse": ("torch/sparse/__init__.py", "_sparse"),
}


def hooks_for(lane: Literal["graft", "source"], headers: tuple[str, ...]) -> list[ListEdit]:
    """The hooks of a lane; those of one file in the order of their insertion."""
    shared = [
        *parser_hooks(),
        *_codegen(lane, headers),
        *_overrides(),
        *_python(),
        *_by_name(),
        *_modules(),
    ]
    return shared + ([*_stub_templates(), _symbolic_meta()] if lane == "source" else [])


def parser_hooks(schemas: Sequence[str] | None = None) -> list[ListEdit]:
    """Lists that torchgen needs filled to parse the additions at all; the same in both lanes.

    schemas: those of the additions, as long as there is no manifest.
    """
    return [
        ListEdit(
            "torchgen/native_function_generation.py",
            Anchor(
                r"FUNCTIONAL_OPS_THAT_CANNOT_GET_AN_OUT_VARIANT = \[",
                "after",
                "of the operators that return no tensor",
            ),
            lists.without_out_variant(schemas),
            indent="    ",
        )
    ]


def _codegen(lane: str, headers: tuple[str, ...]) -> list[ListEdit]:
    """Lists that the autograd codegen reads, and the header its output includes."""
    return [
        ListEdit(
            f"{AUTOGRAD[lane]}/gen_inplace_or_view_type.py",
            Anchor(
                r"VIEW_FUNCTIONS = \{", "after", "of VIEW_FUNCTIONS, by which autograd tells views"
            ),
            lists.view_functions,
            indent="    ",
        ),
        ListEdit(
            "torchgen/gen_functionalization_type.py",
            Anchor(
                r"SINGLE_OUTPUT_VIEW_REPLAY: dict\[str, str\] = \{",
                "after",
                "of the views that give several results",
            ),
            lists.whole_view_replay,
            indent="    ",
        ),
        ListEdit(
            f"{AUTOGRAD[lane]}/gen_variable_type.py",
            Anchor(
                r"GRADIENT_IMPLEMENTED_FOR_COMPLEX = \{",
                "after",
                "of the operators with complex gradients",
            ),
            lists.complex_gradients,
            indent="    ",
        ),
        ListEdit(
            f"{CSRC[lane]}/autograd/FunctionsManual.h",
            Anchor(
                r"\} // namespace torch::autograd::generated::details",
                "after",
                "of headers that derivative formulas need",
            ),
            lists.includes(headers),
            comment="//",
        ),
    ]


def _overrides() -> list[ListEdit]:
    """torch.overrides: what __torch_function__ can override and what it cannot reach."""
    return [
        ListEdit(
            "torch/overrides.py",
            Anchor(
                r"    ret: [dD]ict\[Callable, Callable\] = \{",
                "after",
                "of the functions that __torch_function__ overrides",
            ),
            lists.testing_overrides,
            indent=" " * 8,
        ),
        ListEdit(
            "torch/overrides.py",
            Anchor(
                r"        torch\.typename,",
                "after",
                "of the functions that __torch_function__ cannot reach",
            ),
            lists.ignored_functions,
            indent=" " * 8,
        ),
    ]


def _python() -> list[ListEdit]:
    """Other tables of function names that Python code looks into."""
    return [
        ListEdit(
            "torch/_dynamo/trace_rules.py",
            Anchor(
                r"torch_name_rule_map = \[",
                "before",
                "of the C functions that torch.compile puts into a graph",
            ),
            lists.in_graph_functions,
        ),
        ListEdit(
            "torch/utils/_device.py",
            Anchor(
                r"        torch\.empty,", "after", "of the functions that take a default device"
            ),
            lists.device_constructors,
            indent=" " * 8,
        ),
        ListEdit(
            "torch/fx/node.py",
            Anchor(
                r"_side_effectful_functions: [sS]et\[Callable.*\] = \{",
                "after",
                "of the operators that dead code elimination keeps",
            ),
            lists.side_effects,
            indent="    ",
        ),
    ]


def _by_name() -> list[ListEdit]:
    """Places where upstream hands every overload of a name to code written for its own."""
    return [
        ListEdit(
            "torch/_decomp/__init__.py",
            Anchor(
                r"    for op_overload in overloads:",
                "before",
                "of the overloads that decompositions of a name are for",
            ),
            lists.added_overloads("overloads", "_f is op"),
            indent="    ",
        ),
        ListEdit(
            "torch/_inductor/lowering.py",
            Anchor(
                r"    return aten_fn", "before", "of the overloads that lowerings of a name are for"
            ),
            lists.added_overloads(
                "aten_fn",
                "not isinstance(_f, torch._ops.OpOverload) or _f.overloadpacket not in aten_fn",
            ),
            indent="    ",
        ),
    ]


def _modules() -> list[ListEdit]:
    """Public names of operators with a python_module."""
    return [
        ListEdit(
            path,
            Anchor(END_OF_FILE, "after", f"of the public names of torch.{module}"),
            lists.module_names(module, home),
        )
        for module, (path, home) in MODULES.items()
    ]


def _symbolic_meta() -> ListEdit:
    """The Meta kernels that know symbolic shapes, in the library that is loaded after libtorch."""
    return ListEdit(
        symbolic.INCLUDED_BY,
        Anchor(END_OF_FILE, "after", "of Meta kernels that know symbolic shapes"),
        lists.symbolic_meta,
        comment="//",
    )


def _stub_templates() -> list[ListEdit]:
    """Stub templates whose function lists a source tree's stub generator keeps by hand."""
    return [
        ListEdit(
            "torch/_C/_nn.pyi.in",
            Anchor(END_OF_FILE, "after", "of the stubs of torch._C._nn"),
            nn_stub,
        ),
        ListEdit(
            "torch/nn/functional.pyi.in",
            Anchor(END_OF_FILE, "after", "of the stubs of torch.nn.functional"),
            functional_stub,
        ),
    ]
