"""What the plan says of each function of an operator. Imports neither torch nor torchfork."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CppCall:
    """How C++ calls a function: as a function of namespace at, or as a method."""

    name: str
    returns: str
    arguments: list[list[str]]  # [type, name] each
    self_index: int


@dataclass(frozen=True)
class Entry:
    """A function: the fields of torchfork.codegen.model.FinishedOperator that checks read."""

    name: str
    overload: str
    schema: str
    base_name: str
    kind: str
    generated: bool
    python_module: str | None
    python_function: bool
    python_method: bool
    new_base_name: bool
    composite_implicit: bool
    tensor_arguments: bool
    structseq: bool  # its returns are named
    cpp_function: CppCall | None = None
    cpp_method: CppCall | None = None

    @property
    def id(self) -> str:
        """'name' or 'name.overload'."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


def from_json(data: Mapping[str, Any]) -> Entry:
    """A function from the plan's JSON."""
    calls = {key: data[key] and CppCall(**data[key]) for key in ("cpp_function", "cpp_method")}
    known = {key: data[key] for key in Entry.__dataclass_fields__}
    return Entry(**{**known, **calls, "structseq": data["structseq"] is not None})
