"""An operator under test: what its declaration says, and how each of its variants is called."""

from __future__ import annotations

import operator as attributes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...codegen.model import CppCall, FinishedOperator, OperatorGroup

# The shape or the control flow of what follows depends on the values.
_DATA = {"data_dependent_output", "dynamic_output_shape"}


@dataclass(frozen=True)
class Operator(OperatorGroup):
    """An operator of the plan, which this torch has."""

    @property
    def id(self) -> str:
        """'name' or 'name.overload'."""
        return self.entry.qualified

    @property
    def name(self) -> str:
        return self.entry.name

    @cached_property
    def overload(self) -> Any:
        """The operator in torch.ops.aten."""
        return overload(self.entry)

    @cached_property
    def schema(self) -> Any:
        return self.overload._schema

    @property
    def implicit(self) -> bool:
        """Whether it is made of other operators, which is what everything then sees."""
        return self.entry.composite_implicit

    @property
    def differentiable(self) -> bool:
        return self.formula or self.implicit

    @cached_property
    def tags(self) -> set[str]:
        return {tag.name for tag in self.overload.tags}

    @property
    def random(self) -> bool:
        return "nondeterministic_seeded" in self.tags

    @property
    def data_dependent(self) -> bool:
        return bool(self.tags & _DATA)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The places of the arguments that the operator writes to."""
        return tuple(
            place
            for place, argument in enumerate(self.schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )

    @property
    def tensor_results(self) -> bool:
        return any("Tensor" in str(result.type) for result in self.schema.returns)

    @property
    def tensor_arguments(self) -> bool:
        return self.entry.tensor_arguments

    @property
    def home(self) -> str:
        """Where below torch the function is: '' for torch itself, '_C._nn.' and so on."""
        module = self.entry.python_module
        return "" if module is None else f"_C._{module}."

    @property
    def function(self) -> Callable[..., Any] | None:
        """The builtin, or None where the declaration asks for none."""
        if not self.entry.python_function:
            return None
        found: Callable[..., Any] = attributes.attrgetter(self.home + self.name)(torch)
        return found

    @property
    def method(self) -> Any:
        """Its descriptor in torch.Tensor, or None where the declaration asks for none."""
        return getattr(torch.Tensor, self.name) if self.entry.python_method else None

    @property
    def bound(self) -> bool:
        return bool(self.entry.python_function or self.entry.python_method)

    def cpp(self, way: str) -> CppCall | None:
        """How C++ calls it; way: 'function' or 'method'."""
        return self.entry.cpp_function if way == "function" else self.entry.cpp_method

    def seeded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with the generators set before each call where the operator draws."""
        if not self.random:
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            torch.manual_seed(7)
            return function(*args, **kwargs)

        return call

    def variant(self, kind: str) -> list[FinishedOperator]:
        """The entries of a kind: 'inplace', 'out'; the operator's own among them."""
        return [e for e in (self.entry, *self.variants) if e.kind == kind]


def overload(entry: FinishedOperator) -> Any:
    """A manifest's entry in torch.ops.aten."""
    packet = getattr(torch.ops.aten, entry.name)
    return getattr(packet, entry.overload or "default")


def from_plan(planned: Mapping[str, Any]) -> Operator:
    """An operator from the plan's JSON."""
    entry, *variants = map(_function, (planned["entry"], *planned["variants"]))
    return Operator(entry, tuple(variants), planned["formula"], planned["forward"])


def _function(data: Mapping[str, Any]) -> FinishedOperator:
    calls = {key: data[key] and CppCall(**data[key]) for key in ("cpp_function", "cpp_method")}
    return FinishedOperator(**{**data, **calls})
