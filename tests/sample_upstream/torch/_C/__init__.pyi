# ruff: noqa: F401
from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor
from torch.types import Number, _complex, _int

class SymInt: ...
class Generator: ...
class _TensorMeta(type): ...

class TensorBase(metaclass=_TensorMeta):
    ndim: _int
    def sinc(self) -> Tensor: ...

class Later:
    def gdh(self) -> int: ...
