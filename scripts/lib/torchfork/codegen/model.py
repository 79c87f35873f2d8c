"""What additions add to a torch, in PyTorch's own terms: Manifest and Operator.

The code generator's child process makes a manifest from torchgen's objects (codegen.manifest) and
writes it as JSON. Everything else reads these classes, so that nothing else depends on a release's
torchgen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["functional", "view", "inplace", "mutable", "out", "scratch"]
Variant = Literal["function", "method"]


@dataclass(frozen=True)
class StructSeq:
    """The named-tuple type of an operator with named returns, and the text of its stub."""

    name: str
    fields: tuple[str, ...]
    pyi: str


@dataclass(frozen=True)
class Operator:
    """One added function: declared by somebody, or generated from a declaration."""

    name: str  # 'hypot_', without the overload
    overload: str  # 'out', '' for the default overload
    schema: str
    base_name: str  # the name without a trailing '_'
    kind: Kind
    generated: bool  # made by the code generator (autogen, a view's _copy)
    variants: tuple[str, ...]
    python_module: str | None
    python_function: bool  # upstream's generator binds it to Python as a function
    python_method: bool  # ... as a method of Tensor
    new_name: bool  # the base has no operator of this name
    new_base_name: bool  # the base has no operator of this base name
    view_of: str | None  # the argument whose storage a non-mutating result shares
    composite_implicit: bool
    differentiable: bool  # a formula applies to it, its own or that of a variant
    tensor_arguments: bool  # __torch_function__ can be reached through an argument
    factory: bool  # takes dtype, layout, device, pin_memory and no tensor
    structseq: StructSeq | None
    pyi_function: tuple[str, ...]  # stub signatures as upstream's generator forms them; out= is
    pyi_method: tuple[str, ...]  # merged into the functional one

    def pyi(self, variant: Variant) -> tuple[str, ...]:
        """The stub signatures of the function or of the method."""
        return self.pyi_function if variant == "function" else self.pyi_method

    @property
    def qualified(self) -> str:
        """'name' or 'name.overload', as torchgen's lists have it."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True)
class Deprecated:
    """An added signature of deprecated.yaml."""

    name: str
    schema: str
    aten: str  # the call that it stands for
    python_module: str | None
    pyi_function: tuple[str, ...]
    pyi_method: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """Everything that additions add, sorted by name."""

    operators: tuple[Operator, ...] = ()
    deprecated: tuple[Deprecated, ...] = ()

    @property
    def base_names(self) -> list[str]:
        """The names of the operators, their variants taken together."""
        return sorted({op.base_name for op in self.operators})

    @property
    def unbound(self) -> list[str]:
        """Operators whose names upstream's generator makes no Python bindings for ('range.*').

        Those of backward functions, which nobody calls from Python, are not meant.
        """
        names = {
            op.name
            for op in self.operators
            if op.kind == "functional" and not op.generated and not op.name.startswith("_")
        }
        bound = {op.name for op in self.operators if op.python_function or op.python_method}
        return sorted(n for n in names - bound if not re.search(r"_(backward|forward)\b", n))

    @property
    def summary(self) -> str:
        """How many functions there are, for progress lines."""
        generated = sum(op.generated for op in self.operators)
        return f"{len(self.operators)} functions, {generated} of them generated variants"


@dataclass(frozen=True)
class CppCall:
    """How C++ calls an operator: the signature without SymInts, options by themselves."""

    name: str
    returns: str
    arguments: tuple[tuple[str, str], ...]  # (type, name) each
    self_index: int  # where a method's self stands among the schema's arguments


@dataclass(frozen=True)
class FinishedOperator(Operator):
    """An operator of a finished torch, with what calls of it from C++ look like."""

    signature: str  # the schema, equal for a function and its in-place and out= variants
    cpp_function: CppCall | None
    cpp_method: CppCall | None


@dataclass(frozen=True)
class OperatorGroup:
    """An operator of the additions with its variants, as conformance checks them.

    entry: the variant that gives the operator its name; variants: all others.
    formula: whether it has a derivative formula; forward: whether forward mode has one.
    """

    entry: FinishedOperator
    variants: tuple[FinishedOperator, ...]
    formula: bool
    forward: bool

    @property
    def called(self) -> set[str]:
        """Every name by which --operator finds it."""
        functions = (self.entry, *self.variants)
        return {name for f in functions for name in (f.qualified, f.name)}
