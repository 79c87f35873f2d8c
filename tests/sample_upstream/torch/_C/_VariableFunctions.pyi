# ruff: noqa: F401
from collections.abc import Sequence
from typing import overload

import torch
from torch import Generator, SymInt, Tensor, contiguous_format, memory_format
from torch._prims_common import DeviceLikeType
from torch.types import Number, _bool, _complex, _dtype, _float, _int, _layout, _size

__all__ = [
    "sinc",
    "where",
]

def sinc(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    r"""
    sinc(input) -> Tensor
    """

@overload
def where(condition: Tensor) -> tuple[Tensor, ...]:
    r"""
    where(condition) -> tuple
    """

@overload
def where(condition: Tensor, input: Tensor, other: Tensor) -> Tensor: ...
